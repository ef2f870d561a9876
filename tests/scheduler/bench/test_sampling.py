"""The bench of draws: what it draws from, and that it has a figure for every way to draw."""

from __future__ import annotations

import pytest
import torch

from engine.demo import MODEL_DIR
from engine.models.hf_config import load_model_config
from scheduler.bench.engine_bench import measure
from scheduler.bench.sampling import KINDS, make_logits
from scheduler.bench.setup import DEMO, Options


@pytest.mark.parametrize(("is_flat", "least", "most"), [(False, 50, 300), (True, 10_000, 100_000)])
def test_top_p_keeps_what_the_kinds_of_logits_are_meant_for(
    is_flat: bool, least: int, most: int
) -> None:
    """Of peaked logits about a hundred are left, of flat ones much; no two rows are equal."""
    logits = make_logits(2, 151_936, is_flat=is_flat, device=torch.device("cpu"))
    ordered = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True).values
    num_kept = (ordered.cumsum(dim=-1) < 0.95).sum(dim=-1)
    assert ((num_kept > least) & (num_kept < most)).all()
    assert not torch.equal(*logits)


def test_every_kind_has_figures_at_every_batch() -> None:
    """Times are of one draw, and passes are what the time would have sufficed for."""
    config = load_model_config(MODEL_DIR)
    assert config.dtype == "bfloat16"
    options = Options(shape=DEMO, dtype="bfloat16", peers=False, rounds=1, batches=(1, 3))
    parts = dict(measure(options, ["sampling"]))
    figures = {key: f for part in parts.values() for key, f in part.figures.items()}
    copy_bytes_per_s = figures["copy_gb_per_s"].value * 1e9
    for name in KINDS:
        for batch in (1, 3):
            taken = figures[f"sampling_demo_{name}_b{batch}_us"]
            passes = figures[f"sampling_demo_{name}_b{batch}_passes"]
            pass_us = batch * config.vocab_size * 2 / copy_bytes_per_s * 1e6
            assert taken.value > 0
            assert passes.value == pytest.approx(taken.value / pass_us)
    assert len(figures) == 2 + 2 * 2 * len(KINDS)
