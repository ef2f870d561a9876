"""What a mistake in a setting is told as, by where it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.chosen_settings import read_settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start in a directory of the test's own, where no file has settings."""
    monkeypatch.chdir(tmp_path)
    # What a run of the tests sets for itself is no setting of a server.
    for name in ("SLUICE_REQUIRE_ALL", "SLUICE_HISTORIES_SEED", "SLUICE_REQUIRE_AUDIT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], **flags: object) -> list[str]:
    assert read_settings(flags) is None
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SLUICE_MAX_NUM_SEQ", "did you mean SLUICE_MAX_NUM_SEQS?"),
        ("SLUICE_REDISURL", "did you mean SLUICE_REDIS_URL?"),
        ("sluice_prot", "did you mean SLUICE_PORT?"),
        ("SLUICE_SERVED_MODEL_NAME", "did you mean SLUICE_MODEL_NAME?"),
        ("SLUICE_ADMIN_TOKN", "did you mean SLUICE_ADMIN_TOKEN?"),
        ("SLUICE_COLOUR_OF_THE_SKY", "the README lists them all"),
    ],
)
def test_an_unknown_variable_is_refused(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that was spelled wrong is no limit: the start ends and names what was meant."""
    monkeypatch.setenv(variable, "1")
    assert told(capsys) == [f"sluice: {variable}: no such setting; {meant}"]


@pytest.mark.parametrize("variable", ["SLUICE_ADMIN_URL", "SLUICE_ADMIN_TOKEN", "SLUICE_API_KEY"])
def test_what_other_commands_read_is_known(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever administers a server from the shell that starts another is not told off."""
    monkeypatch.setenv(variable, "x")
    assert read_settings({}) is not None


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that fills in nothing sets nothing: numbers, paths, lists and what is unknown."""
    for name in ("PORT", "MODEL", "INIT_TENANTS", "MAX_MODEL_LEN", "WEIGHT_DTYPE", "PROT"):
        monkeypatch.setenv(f"SLUICE_{name}", "")
    settings = read_settings({})
    assert settings is not None
    assert (settings.port, settings.model, settings.max_model_len) == (8000, None, None)
    assert settings.init_tenants == ("acme", "globex")


def test_what_kubernetes_sets_for_a_service_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service called `sluice` or `sluice-admin` in the same namespace must not end a start."""
    for name, value in {
        "SLUICE_PORT": "tcp://10.0.0.1:8000",
        "SLUICE_SERVICE_HOST": "10.0.0.1",
        "SLUICE_SERVICE_PORT_HTTP": "8000",
        "SLUICE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "SLUICE_ADMIN_PORT": "tcp://10.0.0.2:8001",
        "SLUICE_ADMIN_PORT_8001_TCP": "tcp://10.0.0.2:8001",
        "SLUICE_REDIS_SERVICE_HOST": "10.0.0.3",
        "SLUICE_REDIS_PORT": "tcp://10.0.0.3:6379",
    }.items():
        monkeypatch.setenv(name, value)
    settings = read_settings({})
    assert settings is not None
    assert settings.port == 8000


def test_a_mistake_is_told_where_it_was_made(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag, a variable or a line of the file, by the name that whoever mends it looks for."""
    (elsewhere / "sluice.toml").write_text(
        'host = "::"\n# max_num_queued = 1\nmax_num_queued = "many"\nmax_num_seq = 1\nport = "a"\n'
    )
    monkeypatch.setenv("SLUICE_ADMIN_PORT", "eight")
    monkeypatch.setenv("SLUICE_PORT", "b")
    found = {line.split(": ")[1]: line for line in told(capsys, num_threads="x")}
    assert found.keys() == {
        "SLUICE_PORT",
        "SLUICE_ADMIN_PORT",
        "--num-threads",
        "sluice.toml, line 3",
        "sluice.toml, line 4",
    }
    assert found["sluice.toml, line 4"].endswith(
        "max_num_seq: no such setting; did you mean max_num_seqs?"
    )


def test_a_mistake_in_a_table_is_told_by_its_line(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which of the tables it is, the key in it, and the one that was meant."""
    (elsewhere / "sluice.toml").write_text(
        'port = 1\n[[models]]\nname = "a"\nmodel = "demo"\n\n[[models]]\ndirectory = "demo"\n'
        "kv_shares = 0.5\nmax_num_seqs = 0\n"
    )
    assert told(capsys) == [
        "sluice: sluice.toml, line 2: [[models]] no. 1: directory: a model needs it",
        "sluice: sluice.toml, line 4: [[models]] no. 1: model: no such key; did you mean "
        "directory?",
        "sluice: sluice.toml, line 9: [[models]] no. 2: max_num_seqs: it must be at least 1",
        "sluice: sluice.toml, line 8: [[models]] no. 2: kv_shares: no such key; did you mean "
        "kv_share?",
    ]
    (elsewhere / "sluice.toml").write_text(
        '[[models]]\ndirectory = "demo"\n[[models]]\ndirectory = "demo"\nkv_share = 0.5\n'
    )
    [line] = told(capsys)
    assert line.startswith("sluice: sluice.toml, line 3: [[models]] no. 2: name: two models are")
    monkeypatch.setenv("SLUICE_MODELS", '[{"directory": "demo", "rolle": "chat"}]')
    [line] = told(capsys)
    assert line == (
        "sluice: SLUICE_MODELS: [[models]] no. 1: rolle: no such key; did you mean role?"
    )
    monkeypatch.setenv("SLUICE_MODELS", '["demo"]')
    [line] = told(capsys)
    assert line.startswith("sluice: SLUICE_MODELS: [[models]] no. 1: it must be a")
    monkeypatch.setenv("SLUICE_MODELS", "[{")
    assert told(capsys) == ["sluice: SLUICE_MODELS: it must be a list of objects, in JSON"]


def test_the_two_ports_are_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The admin API has a port of its own by default, which a server's API cannot have as well."""
    settings = read_settings({})
    assert settings is not None
    assert (settings.port, settings.admin_port) == (8000, 8001)
    [line] = told(capsys, port="8001")
    assert "both have port 8001: choose another with --admin-port, or SLUICE_ADMIN_PORT" in line
    assert read_settings({"port": "0", "admin_port": "0"}) is not None


@pytest.mark.parametrize("size", ["4x", "1.5K", "-4k", "four"])
def test_a_size_that_is_none_names_its_flag(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line shows how sizes are written."""
    [line] = told(capsys, max_model_len=size)
    assert line.startswith("sluice: --max-model-len: ")
    assert "whole number" in line or "unit of 1024" in line


@pytest.mark.parametrize(
    "text",
    [b"port = ", b"\xff\xfe", b"port = " + b"9" * 5000, b"port = " + b"[" * 5000],
    ids=["half", "bytes", "digits", "brackets"],
)
def test_a_file_that_cannot_be_read_is_one_line(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    """However `sluice.toml` is broken, whoever starts a server gets no traceback."""
    (elsewhere / "sluice.toml").write_bytes(text)
    [line] = told(capsys)
    assert line.startswith("sluice: sluice.toml is not TOML: ")
