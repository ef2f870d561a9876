"""Llama's logits against transformers, in float32, for every layout of a checkpoint."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import (
    edit_config,
    load,
    load_reference,
    logits_in_chunks,
    make_attention,
    make_tiny_llama,
    reference_logits,
    rewrite_as_transformers_4,
)
from engine.errors import ModelError
from engine.models.attention import AttentionBatch

TOLERANCE = 1e-4


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": True},
        {"head_dim": 32},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "rms_norm_eps": 1e-3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"max_shard_size": "100KB"},
    ],
    ids=["plain", "tied", "head_dim", "no-gqa", "one-kv-head", "rope_theta", "sharded"],
)
def test_logits_equal_transformers(tmp_path: Path, overrides: dict[str, Any]) -> None:
    """Every logit of a prompt is within 1e-4 of transformers', in one go and in chunks."""
    make_tiny_llama(tmp_path, **overrides)
    sharded = (tmp_path / "model.safetensors.index.json").exists()
    assert sharded == ("max_shard_size" in overrides)
    rng = random.Random(3)
    tokens = [rng.randrange(128) for _ in range(70)]
    expected = reference_logits(load_reference(tmp_path), tokens)
    for chunks in ([70], [1, 15, 16, 17, 21], [64, 1, 1, 4]):
        logits = logits_in_chunks(tmp_path, tokens, chunks)
        assert (logits - expected).abs().max() <= TOLERANCE


def test_the_layout_of_transformers_4_is_the_same_model(tmp_path: Path) -> None:
    """The old layout of config.json yields the same logits, rotary base included."""
    rope = {"rope_type": "default", "rope_theta": 321.0}
    make_tiny_llama(tmp_path, rope_parameters=rope)
    tokens = list(range(40))
    expected = logits_in_chunks(tmp_path, tokens, [40])
    rewrite_as_transformers_4(tmp_path)
    assert "rope_parameters" not in (tmp_path / "config.json").read_text()
    assert torch.equal(logits_in_chunks(tmp_path, tokens, [40]), expected)


def test_only_the_rows_asked_for_get_logits(tiny_llama_dir: Path) -> None:
    """`logit_rows` picks tokens, in its own order, before the vocabulary is touched."""
    model, attention = load(tiny_llama_dir), make_attention(tiny_llama_dir)
    tokens = list(range(20))
    every = logits_in_chunks(tiny_llama_dir, tokens, [20])
    attention.plan(
        AttentionBatch(
            num_decodes=0,
            positions=np.arange(20),
            query_lens=np.array([20], np.int32),
            context_lens=np.array([20], np.int32),
            block_tables=np.array([[4, 2]], np.int32),
        )
    )
    rows = torch.tensor([19, 3])
    some = model.forward(torch.tensor(tokens), torch.arange(20), attention, rows)
    assert some.shape == (2, 128)
    assert (some - every[rows]).abs().max() <= TOLERANCE


def test_a_config_of_another_size_is_refused(tmp_path: Path) -> None:
    """Weights whose shapes contradict config.json are named, not loaded."""
    make_tiny_llama(tmp_path)
    edit_config(tmp_path, intermediate_size=80)
    with pytest.raises(ModelError, match=r"gate_proj\.weight has shape \[96, 64\].*\[80, 64\]"):
        load(tmp_path)


def test_a_missing_head_is_refused_unless_tied(tmp_path: Path) -> None:
    """Tied checkpoints have no lm_head; a config that denies the tie needs one."""
    make_tiny_llama(tmp_path, tie_word_embeddings=True)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is in none"):
        load(tmp_path)
