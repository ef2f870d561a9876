"""Tells what somebody gave in place of a model's directory, and the way from there to one.

Sluice reads a directory as Hugging Face has them: config.json, safetensors, tokenizer.json. What
people have instead is known: a name on the Hub, a GGUF file, an adapter, a download that never
happened. Loads no torch.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from engine.errors import ModelError

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"
# A pointer has about 130 bytes.
_POINTER_MAX_BYTES: Final = 1024
_NO_GGUF: Final = (
    "is GGUF, llama.cpp's format, which is not read; fetch the model that it was made from, with "
    "config.json and safetensors, and give that directory"
)
_SENTENCEPIECE: Final = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def check_model_dir(model_dir: Path) -> None:
    """Refuse what cannot be a model's directory. Raises: `ModelError`: one line, with a way out."""
    if model_dir.is_dir():
        if not (model_dir / "config.json").exists():
            _refuse_without_config(model_dir)
        return
    if model_dir.suffix.lower() == ".gguf":
        raise ModelError(f"{model_dir}: {_NO_GGUF}")
    if model_dir.is_file():
        raise ModelError(
            f"{model_dir}: is a file, and no such directory; give the one that it lies in, with "
            "config.json and safetensors"
        )
    if _HUB_ID.fullmatch(str(model_dir)):
        local = model_dir.name
        raise ModelError(
            f"{model_dir}: no such directory here, and nothing is downloaded by itself; if it is "
            f"a model on the Hub: pip install huggingface_hub && hf download {model_dir} "
            f"--local-dir {local}, then sluice serve ./{local}"
        )
    raise ModelError(f"{model_dir}: no such directory; give the path of a Hugging Face model")


def why_no_tokenizer(model_dir: Path) -> str:
    """Say what to do where a directory has no tokenizer.json."""
    for name in _SENTENCEPIECE:
        if (model_dir / name).exists():
            return (
                f"{model_dir}: has {name}, which only SentencePiece reads, and no tokenizer.json; "
                'make one: pip install transformers sentencepiece protobuf && python -c "from '
                f"transformers import AutoTokenizer as T; T.from_pretrained('{model_dir}')"
                f".save_pretrained('{model_dir}')\""
            )
    return (
        f"{model_dir / 'tokenizer.json'}: no such file; Sluice needs a tokenizer.json beside a "
        "model: fetch it from where the model is from"
    )


def refuse_lfs_pointer(path: Path) -> None:
    """Refuse the note that Git leaves in place of a large file. Raises: `ModelError`."""
    try:
        if path.stat().st_size > _POINTER_MAX_BYTES or not path.is_file():
            return
        is_pointer = path.read_bytes().startswith(_LFS_POINTER)
    except OSError:
        return  # Whoever reads the file says what is the matter with it.
    if is_pointer:
        raise ModelError(
            f"{path}: is a Git LFS pointer and not the file itself; fetch it: "
            f"git -C {path.parent} lfs pull"
        )


def _refuse_without_config(model_dir: Path) -> None:
    """Name what a directory without config.json is, where that can be told."""
    names = sorted(path.name for path in model_dir.iterdir() if not path.name.startswith("."))
    if not names:
        raise ModelError(
            f"{model_dir}: is empty; download a model into it: config.json, safetensors, "
            "tokenizer.json"
        )
    if any(name.lower().endswith(".gguf") for name in names):
        raise ModelError(f"{model_dir}: {_NO_GGUF}")
    if "adapter_config.json" in names:
        base = _base_of(model_dir / "adapter_config.json")
        raise ModelError(
            f"{model_dir}: is a LoRA adapter{f' of {base}' if base else ''}, and adapters are not "
            "served by themselves; merge it into its base (merge_and_unload of peft, then "
            "save_pretrained) and give the result"
        )


def _base_of(adapter_config: Path) -> str | None:
    try:
        base = json.loads(adapter_config.read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return json.dumps(base)[:80] if isinstance(base, str) else None
