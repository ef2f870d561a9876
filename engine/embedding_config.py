"""Reads from a Hugging Face directory how its model makes vectors. Loads no torch.

Sentence Transformers' `modules.json` lists the steps: the model itself, `1_Pooling`, which says
what of the hidden states is the vector, and often `Normalize`. A directory without it is a decoder
whose last token is pooled. All vectors are given a length of 1. What cannot be computed faithfully
is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.contract import Pooling
from engine.model_dir import check_model_dir
from engine.models.config_fields import Fields, brief, read_object, read_objects

# By the names of the version from 2019 on; the one of 2025 says `pooling_mode` with the same ends.
_MODES: Final = {"lasttoken": Pooling.LAST, "mean_tokens": Pooling.MEAN, "mean": Pooling.MEAN}
_PREFIX: Final = "pooling_mode"
# Modules by the last part of their type.
_TRANSFORMER, _POOLING, _NORMALIZE = "Transformer", "Pooling", "Normalize"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """Say how a model makes a vector of a text.

    `dimensions` are those that a vector may be cut to, empty where all may be: None where the model
    was not trained for that (Kusupati et al., "Matryoshka Representation Learning", 2022).
    """

    pooling: Pooling
    dimensions: tuple[int, ...] | None = None


def read_embedding_config(model_dir: Path) -> EmbeddingConfig:
    """Read it. Raises: `ModelError`: it cannot be read, or asks for what is not done here."""
    check_model_dir(model_dir)
    config = model_dir / "config.json"
    fields = read_object(config)
    if fields.get("is_causal") is False or fields.get("use_bidirectional_attention") is True:
        raise fields.error(
            "its tokens see those that come after them, which is not done here",
            "choose a decoder model, as Qwen3-Embedding",
        )
    return EmbeddingConfig(pooling=_pooling(model_dir), dimensions=_dimensions(config))


def _dimensions(config: Path) -> tuple[int, ...] | None:
    fields = read_object(config)
    listed = fields.get("matryoshka_dimensions")
    if listed is not None:
        if not isinstance(listed, list) or not all(type(n) is int and n > 0 for n in listed):
            raise fields.error(
                f"matryoshka_dimensions is {brief(listed)}", "it must be a list of sizes"
            )
        return tuple(sorted(listed))
    return () if fields.boolean("is_matryoshka", default=False) else None


def _pooling(model_dir: Path) -> Pooling:
    path = model_dir / "modules.json"
    if not path.exists():
        return Pooling.LAST
    found = Pooling.LAST
    for module in read_objects(path):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == _POOLING:
            found = _read_pooling(model_dir / _folder_of(module) / "config.json")
        elif kind not in (_TRANSFORMER, _NORMALIZE):
            raise module.error(
                f"module {brief(kind)} is not computed here",
                "choose a model of Transformer, Pooling and Normalize",
            )
    return found


def _folder_of(module: Fields) -> str:
    name = module.get("path")
    if not isinstance(name, str) or name in ("", "..") or "/" in name or "\0" in name:
        raise module.error(f"path {brief(name)} is no folder beside it", "fetch the file again")
    return name


def _read_pooling(path: Path) -> Pooling:
    fields = read_object(path)
    if not fields.boolean("include_prompt", default=True):
        raise fields.unsupported("include_prompt", "true")
    named = fields.get(_PREFIX)
    if named is None:
        modes = [
            name.removeprefix(f"{_PREFIX}_")
            for name, is_on in fields.values().items()
            if name.startswith(f"{_PREFIX}_") and is_on is True
        ]
    else:
        modes = list(named) if isinstance(named, list) else [named]
    found = _MODES.get(modes[0]) if len(modes) == 1 and isinstance(modes[0], str) else None
    if found is None:
        raise fields.error(
            f"{_PREFIX} {brief(modes)} is not supported", f"supported: {', '.join(_MODES)}"
        )
    return found
