"""What people give in place of a model's directory, and what they are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.model_dir import check_model_dir
from engine.models.hf_config import load_model_config
from engine.text import Tokenizer

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def gguf_file(path: Path) -> Path:
    (path / "m.Q4_K_M.GGUF").write_bytes(b"GGUF")
    return path / "m.Q4_K_M.GGUF"


def gguf_directory(path: Path) -> Path:
    gguf_file(path)
    (path / "README.md").touch()
    return path


def adapter(path: Path) -> Path:
    config = {"base_model_name_or_path": "Qwen/Qwen3-0.6B", "peft_type": "LORA"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    (path / "adapter_model.safetensors").touch()
    return path


def hub_id(path: Path) -> Path:
    return Path("Qwen/Qwen3-0.6B")


def weights_file(path: Path) -> Path:
    (path / "model.safetensors").touch()
    return path / "model.safetensors"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (gguf_file, ["GGUF", "safetensors"]),
        (gguf_directory, ["GGUF", "safetensors"]),
        (adapter, ["LoRA adapter", "Qwen/Qwen3-0.6B", "merge"]),
        (lambda path: path, ["is empty", "download"]),
        (hub_id, ["hf download Qwen/Qwen3-0.6B --local-dir", "sluice serve ./Qwen3-0.6B"]),
        (weights_file, ["is a file", "give the one that it lies in"]),
        (lambda path: path / "no" / "where", ["no such directory"]),
    ],
    ids=["gguf", "gguf-directory", "adapter", "empty", "hub", "file", "missing"],
)
def test_what_is_no_model_is_told_from_one(
    tmp_path: Path, make: Callable[[Path], Path], words: list[str]
) -> None:
    """Each is one line that says what it is and how to come to a model from there."""
    model_dir = make(tmp_path)
    for refuse in (check_model_dir, load_model_config):
        with pytest.raises(ModelError) as caught:
            refuse(model_dir)
        said = str(caught.value)
        assert "\n" not in said
        assert all(word in said for word in [str(model_dir), *words]), said


def test_a_tokenizer_of_sentencepiece_alone_is_converted(tmp_path: Path) -> None:
    """A directory with tokenizer.model only is told the command that makes a tokenizer.json."""
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelError, match=r"SentencePiece.*AutoTokenizer.*save_pretrained"):
        Tokenizer.from_dir(tmp_path)


def test_a_pointer_of_git_lfs_is_named_with_its_command(tmp_path: Path) -> None:
    """A clone without LFS has notes in place of files: tokenizer.json and config.json say so."""
    pulled = rf"Git LFS pointer.*git -C {tmp_path} lfs pull"
    (tmp_path / "tokenizer.json").write_text(POINTER)
    with pytest.raises(ModelError, match=pulled):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "config.json").write_text(POINTER)
    with pytest.raises(ModelError, match=pulled):
        load_model_config(tmp_path)
