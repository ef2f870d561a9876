"""Find out at start what this CPU computes fastest: layouts, element type, threads.

Each question is a race of a few milliseconds between the real candidates, on real weights where
there are some. Runs alternate and each candidate is judged by its best, so a neighbour on the
same machine disturbs the figures but rarely the verdict. Whatever the answer, results differ by
rounding at most.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from engine.models.linear import Layout, Linear, apply_packed, pack

_ROUNDS = 2
# Rows at which layouts race: a lone request and a few.
_ROWS = (1, 8)
# Of a wide layer a part tells enough.
_MAX_OUT_FEATURES = 4096
# More than caches hold: in a decode step, every weight comes from memory.
_RACE_BYTES = 48 << 20
# Weights of up to this share of the memory may be kept in two layouts.
_MAX_DOUBLED_SHARE = 1 / 8
_WORTH_IT = 0.95


@torch.inference_mode()
def lay_out(linears: Sequence[Linear], *, native: bool) -> None:
    """Give every linear layer of a model the layout that wins the race of its shape.

    Where memory allows, few rows get a layout of their own as well: the compiled decoder's if
    `native`, else plain for single ones where it wins there.
    """
    total_bytes = sum(linear.plain.nbytes for linear in linears if linear.plain is not None)
    may_double = total_bytes <= _memory_bytes() * _MAX_DOUBLED_SHARE
    groups: dict[tuple[int, ...], list[Linear]] = {}
    for linear in linears:
        assert linear.plain is not None
        groups.setdefault(tuple(linear.plain.shape), []).append(linear)
    for group in groups.values():
        layout = choose_layout(_racers(group))
        if layout is Layout.BOTH and (native or not may_double):
            layout = Layout.PACKED
        for linear in group:
            if native and may_double and torch.ops.sluice.max_few_rows(linear.plain):
                linear.few_rows = torch.ops.sluice.few_rows_weight(linear.plain)
            linear.lay_out(layout)


def _racers(group: Sequence[Linear]) -> list[Tensor]:
    """Take so many weights of one shape that they do not stay in a cache between two rounds."""
    weights = [linear.plain for linear in group if linear.plain is not None]
    return weights[: max(1, _RACE_BYTES // weights[0].nbytes)]


def choose_layout(weights: Sequence[Tensor]) -> Layout:
    """Race plain against packed over weights of one shape, [in_features, out_features]."""
    plain = [weight[:, :_MAX_OUT_FEATURES] for weight in weights]
    try:
        packed = [pack(weight) for weight in plain]
        x = torch.ones(2, plain[0].shape[0], dtype=plain[0].dtype)
        agrees = torch.allclose(apply_packed(x, packed[0], None), x @ plain[0], rtol=2e-2, atol=0.1)
    # Whatever a private operator does where it is not supported, the plain product works.
    except (RuntimeError, AttributeError):
        return Layout.PLAIN
    if not agrees:
        return Layout.PLAIN
    ratios = [_packed_ratio(plain, packed, rows) for rows in _ROWS]
    if ratios[1] > _WORTH_IT and sum(ratios) / len(ratios) > _WORTH_IT:
        return Layout.PLAIN
    return Layout.BOTH if _WORTH_IT * ratios[0] > 1 else Layout.PACKED


def _packed_ratio(plain: Sequence[Tensor], packed: Sequence[Tensor], rows: int) -> float:
    x = torch.ones(rows, plain[0].shape[0], dtype=plain[0].dtype)
    plain_s, packed_s = race(
        lambda: _sum(x @ weight for weight in plain),
        lambda: _sum(apply_packed(x, weight, None) for weight in packed),
    )
    return packed_s / plain_s


@torch.inference_mode()
def bfloat16_wins() -> bool:
    """Tell whether this CPU multiplies bfloat16 faster than float32, at one row and at eight."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    try:
        return all(_bfloat16_wins_at(rows) for rows in _ROWS)
    except (RuntimeError, AttributeError):
        return False


@torch.inference_mode()
def choose_num_threads() -> int:
    """Choose torch's threads: all cores but one, which the event loop needs, or fewer if faster."""
    most = max(1, len(os.sched_getaffinity(0)) - 1)
    candidates = sorted({1, max(1, most // 2), most})
    if len(candidates) == 1:
        return most
    weight = torch.ones(2048, 2048)
    x = torch.ones(8, 2048)
    best_s = {n: float("inf") for n in candidates}
    before = torch.get_num_threads()
    for _ in range(_ROUNDS):
        for n in candidates:
            torch.set_num_threads(n)
            best_s[n] = min(best_s[n], _time(lambda: x @ weight))
    torch.set_num_threads(before)
    # A thread more must pay for itself.
    return min(candidates, key=lambda n: (best_s[n] * (1 + 0.01 * n), n))


def race(*candidates: Callable[[], object]) -> list[float]:
    """Run candidates in turn, and return the best time of each, in seconds."""
    for run in candidates:
        run()
    times = [[_time(run) for run in candidates] for _ in range(_ROUNDS)]
    return [min(column) for column in zip(*times, strict=True)]


def _bfloat16_wins_at(rows: int) -> bool:
    weights = [torch.ones(1024, 2048) for _ in range(4)]
    halves = [pack(weight.bfloat16()) for weight in weights]
    x = torch.ones(rows, 1024)
    half = x.bfloat16()
    float_s, half_s = race(
        lambda: _sum(x @ weight for weight in weights),
        lambda: _sum(apply_packed(half, weight, None) for weight in halves),
    )
    return half_s < _WORTH_IT * float_s


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _sum(results: Iterable[Tensor]) -> int:
    return sum(len(result) for result in results)


def _time(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s
