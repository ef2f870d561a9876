"""Find out at start what this CPU computes fastest: layouts, element type, threads.

Each question is a race of a few milliseconds between the real candidates, on real weights where
there are some. Runs alternate and each candidate is judged by its best, so a neighbour on the
same machine disturbs the figures but rarely the verdict. Whatever the answer, results differ by
rounding at most. The layouts of a model are raced for once: `engine.probe.cache` keeps them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.models.linear import Layout, Linear, apply_packed, pack
from engine.probe import cache as probe_cache
from engine.probe import huge_pages

_ROUNDS = 3
# Rows at which layouts race: a lone request and a few.
_ROWS = (1, 8)
# Rows up to which the compiled few-row products may serve a layer, and how much weight tells.
_FEW_ROWS = (2, 16, 64, 128)
_FEW_ROWS_RACE_BYTES = 8 << 20
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
    groups: dict[tuple[str | int, ...], list[Linear]] = {}
    for linear in linears:
        assert linear.plain is not None
        groups.setdefault((str(linear.plain.dtype), *linear.plain.shape), []).append(linear)
    sizes = [[*shape, len(group)] for shape, group in groups.items()]
    # All races come first: the compiled layouts are allocated side by side, without theirs between.
    choices = probe_cache.recall(
        ["layouts", native, may_double, torch.get_num_threads(), sizes],
        lambda: [_choose(g, native=native, may_double=may_double) for g in groups.values()],
        encode=lambda found: [[layout.value, max_few_rows] for layout, max_few_rows in found],
        decode=partial(_decode, num_groups=len(groups), native=native),
    )
    for group, (layout, max_few_rows) in zip(groups.values(), choices, strict=True):
        for linear in group:
            if max_few_rows:
                linear.few_rows = torch.ops.sluice.few_rows_weight(linear.plain)
                linear.max_few_rows = max_few_rows
            linear.lay_out(layout)
    if not native:
        kept = [weight for x in linears for weight in (x.plain, x.packed) if weight is not None]
        huge_pages.collapse(kept)


def _decode(kept: object, *, num_groups: int, native: bool) -> list[tuple[Layout, int]]:
    """Read kept choices. Raises: `ValueError`: they are none for so many shapes."""
    possible = (0, *_FEW_ROWS) if native else (0,)
    if not isinstance(kept, list) or len(kept) != num_groups:
        raise ValueError("not a choice for each shape")
    choices = []
    for choice in kept:
        match choice:
            case [str(name), int(max_few_rows)] if max_few_rows in possible:
                choices.append((Layout(name), max_few_rows))
            case _:
                raise ValueError(f"{choice} is no layout")
    return choices


def _choose(group: Sequence[Linear], *, native: bool, may_double: bool) -> tuple[Layout, int]:
    """Choose the layout of one shape, and up to how many rows the compiled products serve."""
    racers = _racers(group)
    layout = choose_layout(racers)
    if layout is Layout.BOTH and (native or not may_double):
        layout = Layout.PACKED
    if not (native and may_double and torch.ops.sluice.has_few_rows(racers[0])):
        return layout, 0
    return layout, _choose_max_few_rows(racers, layout)


def _racers(group: Sequence[Linear]) -> list[Tensor]:
    """Take so many weights of one shape that they do not stay in a cache between two rounds."""
    weights = [linear.plain for linear in group if linear.plain is not None]
    return weights[: max(1, _RACE_BYTES // weights[0].nbytes)]


def _choose_max_few_rows(weights: Sequence[Tensor], layout: Layout) -> int:
    """Find the most rows at which the compiled products beat the layout chosen; 0 is never."""
    weights = [weight[:, :_MAX_OUT_FEATURES] for weight in weights]
    weights = weights[: max(1, _FEW_ROWS_RACE_BYTES // weights[0].nbytes)]
    panels = [torch.ops.sluice.few_rows_weight(weight) for weight in weights]
    packed = [] if layout is Layout.PLAIN else [pack(weight) for weight in weights]

    def few(x: Tensor) -> int:
        few_rows_linear = torch.ops.sluice.few_rows_linear
        return _sum(few_rows_linear(x, weight, None, None) for weight in panels)

    def other(x: Tensor) -> int:
        if packed and len(x) > 1:
            return _sum(apply_packed(x, weight, None) for weight in packed)
        return _sum(x @ weight for weight in weights)

    limit = 0
    for rows in _FEW_ROWS:
        x = torch.ones(rows, weights[0].shape[0], dtype=weights[0].dtype)
        few_s, other_s = race(partial(few, x), partial(other, x))
        # A tie at the most rows goes to the layout that decodes read anyway.
        if few_s * _WORTH_IT <= other_s:
            limit = rows
    return limit


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
