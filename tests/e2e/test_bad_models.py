"""A model directory that cannot be served: one line that says which file and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from engine.demo import MODEL_DIR
from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import OWNER
from tests.live_server import run_sluice, sluice_env, start_server
from tests.made_stores import MadeStores
from tests.passable import passable_directory


@pytest.fixture(scope="module")
def stores(made_stores: MadeStores) -> Iterator[dict[str, str]]:
    """Run stores for servers that never come to use them; returns the settings that name them."""
    with (
        passable_directory() as parent,
        EmbeddedServers(made_stores.copy(parent / "data")) as servers,
    ):
        yield {
            "SLUICE_DATABASE_URL": servers.database_url(),
            "SLUICE_DATABASE_OWNER_URL": servers.database_url(OWNER),
            "SLUICE_REDIS_URL": servers.redis_url(),
        }


def _without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def _truncate(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])


def _unknown_architecture(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = ["MambaForCausalLM"]
    (model / "config.json").write_text(json.dumps(config))


def _wrong_shape(model: Path) -> None:
    path = model / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, path)


def _broken_json(model: Path) -> None:
    (model / "config.json").write_text('{"architectures": [')


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without("config.json"), ["config.json"]),
        (_without("tokenizer.json"), ["tokenizer.json"]),
        (_without("model.safetensors"), ["safetensors"]),
        (_truncate, ["model.safetensors"]),
        (_unknown_architecture, ["MambaForCausalLM", "LlamaForCausalLM"]),
        (_wrong_shape, ["model.safetensors", "model.layers.0.mlp.down_proj.weight"]),
        (_broken_json, ["config.json"]),
        (shutil.rmtree, ["no such directory"]),
    ],
    ids=["config", "tokenizer", "weights", "truncated", "architecture", "shape", "json", "missing"],
)
def test_one_line_names_the_file(
    tmp_path: Path, stores: dict[str, str], spoil: Callable[[Path], None], words: list[str]
) -> None:
    """The command ends with one line on stderr that names what is wrong, and exit code 1."""
    model = tmp_path / "model"
    shutil.copytree(MODEL_DIR, model)
    spoil(model)
    typed = ("serve", "--port", "0", "--data-dir", tmp_path / "data", "--model", model)
    done = run_sluice(*typed, env=sluice_env(**stores))
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert all(word in line for word in words), line


def test_a_start_that_fails_makes_no_keys_that_nobody_saw(made_data_dir: Path) -> None:
    """The first start that serves is the one that shows the keys, however many failed before."""
    model = made_data_dir / "no"
    flags = ("--port", "0", "--data-dir", made_data_dir, "--model", model)
    failed = run_sluice("serve", *flags, env=sluice_env())
    assert failed.returncode == 1
    server = start_server(made_data_dir)
    assert len(server.banner["keys"]) == 2
    assert server.banner["admin_token"]
    assert server.stop() == 0
