"""Find out whether this CPU computes faster in bfloat16 than in float32."""

from __future__ import annotations

import torch

from engine.models.linear import apply_packed, pack
from engine.probe import cache
from engine.probe.race import ROWS, WORTH_IT, consume, race


def bfloat16_wins() -> bool:
    """Tell whether this CPU multiplies bfloat16 faster than float32, at one row and at eight.

    What is drawn hangs on it, so it is not asked anew at each start.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return cache.recall(["bfloat16"], _wins, encode=bool, decode=_decode)


@torch.inference_mode()
def _wins() -> bool:
    try:
        return all(_wins_at(rows) for rows in ROWS)
    except (RuntimeError, AttributeError):
        return False


def _decode(kept: object) -> bool:
    if not isinstance(kept, bool):
        raise ValueError("neither true nor false")
    return kept


def _wins_at(rows: int) -> bool:
    weights = [torch.ones(1024, 2048) for _ in range(4)]
    halves = [pack(weight.bfloat16()) for weight in weights]
    x = torch.ones(rows, 1024)
    half = x.bfloat16()
    float_s, half_s = race(
        lambda: consume(x @ weight for weight in weights),
        lambda: consume(apply_packed(half, weight, None) for weight in halves),
    )
    return half_s < WORTH_IT * float_s
