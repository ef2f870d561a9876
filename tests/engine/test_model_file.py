"""What a model directory may hold, whoever made it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.model_file import SIZE_MAX_BYTES, read_model_file
from engine.models.hf_config import load_model_config
from engine.models.loader import open_weights
from engine.text import ChatTemplate, Tokenizer
from engine.text.tokenizer import special_tokens


def load(model_dir: Path) -> object:
    import torch

    device = torch.device("cpu")
    return open_weights(
        model_dir, load_format="auto", dtype=torch.float32, device=device, seed=0
    ).take("x", 1)


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": load_model_config,
    "chat_template.jinja": ChatTemplate.from_dir,
    "tokenizer.json": Tokenizer.from_dir,
    "tokenizer_config.json": special_tokens,
    "model.safetensors": load,
    "model.safetensors.index.json": load,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    """A pipe that nobody writes to is refused by its name; a start does not hang on it."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelError, match=name):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", [name for name in READERS if name != "model.safetensors"])
def test_a_file_of_gigabytes_is_not_read(tmp_path: Path, name: str) -> None:
    """What is larger than such a file can be is refused before it fills memory."""
    with (tmp_path / name).open("wb") as file:
        file.truncate(SIZE_MAX_BYTES + 1)
    with pytest.raises(ModelError, match="at most 256"):
        READERS[name](tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    """A file may be a link, as in a download cache."""
    (tmp_path / "blob").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "blob")
    assert read_model_file(tmp_path / "link") == b"text"
