"""How an embedding model's directory says what its vectors are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.contract import Pooling
from engine.embedding_config import EmbeddingConfig, read_embedding_config
from engine.errors import ModelError

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {
        "idx": 2,
        "name": "2",
        "path": "2_Normalize",
        "type": "sentence_transformers.models.Normalize",
    },
]
# As Qwen3-Embedding has it.
LAST = {
    "word_embedding_dimension": 1024,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}


def write(
    path: Path, config: dict[str, Any], modules: Any = None, pooling: dict[str, Any] | None = None
) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if modules is not None:
        (path / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return path


@pytest.mark.parametrize(
    ("pooling", "found"),
    [
        (LAST, Pooling.LAST),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, Pooling.MEAN),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
        ({"pooling_mode": ["mean"]}, Pooling.MEAN),
    ],
)
def test_modules_say_what_is_pooled(
    tmp_path: Path, pooling: dict[str, Any], found: Pooling
) -> None:
    """The pooling module names it, by its old fields and by its new one."""
    config = read_embedding_config(write(tmp_path, {}, MODULES, pooling))
    assert config == EmbeddingConfig(pooling=found)


def test_a_plain_decoder_pools_its_last_token(tmp_path: Path) -> None:
    """Without modules.json it is the last token."""
    assert read_embedding_config(write(tmp_path, {})).pooling is Pooling.LAST


@pytest.mark.parametrize(
    ("config", "dimensions"),
    [
        ({}, None),
        ({"is_matryoshka": True}, ()),
        ({"is_matryoshka": True, "matryoshka_dimensions": [256, 64]}, (64, 256)),
    ],
)
def test_what_a_vector_may_be_cut_to(
    tmp_path: Path, config: dict[str, Any], dimensions: tuple[int, ...] | None
) -> None:
    """config.json says whether, and to which sizes."""
    assert read_embedding_config(write(tmp_path, config)).dimensions == dimensions


@pytest.mark.parametrize(
    ("config", "modules", "pooling", "named"),
    [
        ({}, MODULES, {"pooling_mode_cls_token": True}, "cls_token"),
        ({}, MODULES, {**LAST, "pooling_mode_mean_tokens": True}, "pooling_mode"),
        ({}, MODULES, {}, "pooling_mode"),
        ({}, MODULES, {**LAST, "include_prompt": False}, "include_prompt"),
        ({}, [*MODULES, {"path": "3_Dense", "type": "x.models.Dense"}], LAST, "Dense"),
        ({}, [{"path": "../up", "type": "x.Pooling"}], None, "path"),
        ({}, MODULES, None, "1_Pooling"),
        ({}, {"a": 1}, None, "modules.json"),
        ({}, [1], None, "modules.json"),
        ({"is_causal": False}, None, None, "come after"),
        ({"use_bidirectional_attention": True}, None, None, "come after"),
        ({"matryoshka_dimensions": [0]}, None, None, "matryoshka_dimensions"),
        ({"is_matryoshka": "yes"}, None, None, "is_matryoshka"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    tmp_path: Path, config: dict[str, Any], modules: Any, pooling: dict[str, Any] | None, named: str
) -> None:
    """One line names what is not done here."""
    with pytest.raises(ModelError, match=named) as refused:
        read_embedding_config(write(tmp_path, config, modules, pooling))
    assert "\n" not in str(refused.value)
