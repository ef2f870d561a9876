"""The shapes of real models that are measured with random weights."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = Path(__file__).parent / "configs"
MODELS = tuple(sorted(path.stem for path in _DIRECTORY.glob("*.json")))


def config_path(model: str) -> Path:
    """Return the config.json of a model, by its name."""
    return _DIRECTORY / f"{model}.json"


@contextmanager
def model_directory(model: str) -> Iterator[Path]:
    """Make a model directory without weights, called as the model is."""
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
        directory = Path(name) / model
        directory.mkdir()
        (directory / "config.json").write_bytes(config_path(model).read_bytes())
        yield directory
