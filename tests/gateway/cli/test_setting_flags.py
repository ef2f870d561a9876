"""`sluice serve`: flags that people type from habit, and what an unknown one is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import serve as serving
from gateway.cli.commands import app
from gateway.cli.setting_flags import FLAGS
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, parse_token
from gateway.settings import Settings
from tests.live_server import SLUICE, sluice_env

# What vLLM's users type, and what the settings then are.
HABITS = {
    ("--max-model-len", "4096"): ("max_model_len", 4096),
    ("--max-num-seqs", "8"): ("max_num_seqs", 8),
    ("--max-num-batched-tokens", "512"): ("max_num_batched_tokens", 512),
    ("--dtype", "bfloat16"): ("dtype", "bfloat16"),
    ("--max-model-len", "4k"): ("max_model_len", 4000),
    ("--max-model-len", "4K"): ("max_model_len", 4096),
    ("--max-num-batched-tokens", "2k"): ("max_num_batched_tokens", 2000),
    ("--dtype", "auto"): ("dtype", None),
    ("--dtype", "half"): ("dtype", "float16"),
    ("--dtype", "float16"): ("dtype", "float16"),
    ("--dtype", "float"): ("dtype", "float32"),
    ("--dtype", "float32"): ("dtype", "float32"),
    ("--block-size", "16"): ("block_size", 16),
    ("--kv-cache-dtype", "fp8"): ("kv_dtype", "fp8"),
    ("--kv-cache-dtype", "auto"): ("kv_dtype", None),
    ("--generation-config", "none"): ("generation_config", "none"),
    ("--generation-config", "vllm"): ("generation_config", "none"),
    ("--gpu-memory-utilization", "0.8"): ("gpu_memory_utilization", 0.8),
    ("--served-model-name", "qwen"): ("model_name", "qwen"),
    ("--port", "8080"): ("port", 8080),
    ("./Qwen3-0.6B",): ("model", Path("Qwen3-0.6B")),
    ("--model", "./Qwen3-0.6B"): ("model", Path("Qwen3-0.6B")),
}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Take the settings that a start would have, and start nothing."""
    seen: list[Settings] = []

    def run(flags: dict[str, Any], *_: object) -> int:
        seen.append(Settings(**{name: one for name, one in flags.items() if one is not None}))
        return 0

    monkeypatch.setattr(serving, "_run", run)
    monkeypatch.setattr(serving.signal, "signal", lambda *_: None)
    return seen


@pytest.mark.parametrize("typed", HABITS, ids=" ".join)
def test_what_is_typed_from_habit_is_taken(typed: tuple[str, ...], given: list[Settings]) -> None:
    """Names and meanings are vLLM's, whatever the setting is called here."""
    done = CliRunner().invoke(app, ["serve", *typed])
    assert done.exit_code == 0, done.output
    name, value = HABITS[typed]
    assert getattr(given[0], name) == value


def test_a_key_that_is_given_is_the_first_tenants(given: list[Settings]) -> None:
    """`--api-key` takes what `sluice keys draw` prints."""
    key = CliRunner().invoke(app, ["keys", "draw"]).stdout.strip()
    assert parse_token(key, KEY_PREFIX) is not None
    CliRunner().invoke(app, ["serve", "--api-key", key])
    assert [one.get_secret_value() for one in given[0].init_keys] == [key]


def test_keys_are_drawn_as_the_variables_take_them() -> None:
    """Two keys stand on one line with a comma between; an admin token has its own prefix."""
    runner = CliRunner()
    two = runner.invoke(app, ["keys", "draw", "2"]).stdout.strip().split(",")
    assert len({token.text for one in two if (token := parse_token(one, KEY_PREFIX))}) == 2
    admin = runner.invoke(app, ["keys", "draw", "--admin"]).stdout.strip()
    assert parse_token(admin, ADMIN_PREFIX) is not None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--max-seqs", "did you mean --max-num-seqs, or SLUICE_MAX_NUM_SEQS?"),
        ("--max_model_len", "did you mean --max-model-len, or SLUICE_MAX_MODEL_LEN?"),
        ("--kv-cache-dtpe", "did you mean --kv-cache-dtype, or SLUICE_KV_DTYPE?"),
        ("--max-num-queue", "did you mean the setting SLUICE_MAX_NUM_QUEUED?"),
        ("--redis-url", "it is a setting: SLUICE_REDIS_URL, or redis_url in sluice.toml"),
        ("--tensor-parallel-size", "sluice serve --help has the flags"),
    ],
)
def test_an_unknown_flag_names_the_nearest(typed: str, meant: str) -> None:
    """The flag and the variable are both named, and nothing starts."""
    command = [SLUICE, "serve", typed, "1"]
    done = subprocess.run(command, env=sluice_env(), capture_output=True, text=True)
    assert done.returncode == 2
    assert f"no such option: {typed}; {meant}" in done.stderr
    assert done.stdout == ""


def test_a_model_is_named_once() -> None:
    """Two different models, one as MODEL and one with `--model`, are a mistake."""
    done = CliRunner().invoke(app, ["serve", "a", "--model", "b"])
    assert done.exit_code == 2
    assert "name the model once" in done.output


def test_the_help_has_each_flag_with_its_settings_words() -> None:
    """Flags are generated: their help is the setting's, and each is one."""
    assert FLAGS.keys() <= Settings.model_fields.keys()
    text = CliRunner().invoke(app, ["serve", "--help"]).stdout
    words = " ".join(text.split())
    for name, flags in FLAGS.items():
        assert all(flag in words for flag in flags)
        description = Settings.model_fields[name].description
        assert description is not None
        assert description in words


def test_the_list_of_commands_loads_no_settings() -> None:
    """The settings take half a second to load, which `sluice --help` does not have."""
    probe = (
        "import sys\nfrom gateway.cli.main import main\nsys.argv = ['sluice', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'gateway.settings' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
