"""Find out in which layout this CPU multiplies a model's weights fastest, and lay them out so.

Candidates race on the weights themselves. A model's layouts are raced for once:
`engine.probe.cache` keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from engine.models.linear import Layout, Linear, apply_packed, pack
from engine.probe import cache, huge_pages
from engine.probe.race import ROWS, WORTH_IT, consume, race

# Rows up to which the compiled few-row products may serve a layer, and how much weight tells.
_FEW_ROWS = (2, 16, 64, 128)
_FEW_ROWS_RACE_BYTES = 8 << 20
# Of a wide layer a part tells enough.
_MAX_OUT_FEATURES = 4096
# More than caches hold: in a decode step, every weight comes from memory.
_RACE_BYTES = 48 << 20
# Weights of up to this share of the memory may be kept in two layouts.
_MAX_DOUBLED_SHARE = 1 / 8


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
    choices = cache.recall(
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
        return consume(few_rows_linear(x, weight, None, None) for weight in panels)

    def other(x: Tensor) -> int:
        if packed and len(x) > 1:
            return consume(apply_packed(x, weight, None) for weight in packed)
        return consume(x @ weight for weight in weights)

    for rows in reversed(_FEW_ROWS):
        x = torch.ones(rows, weights[0].shape[0], dtype=weights[0].dtype)
        few_s, other_s = race(partial(few, x), partial(other, x))
        # A tie at the most rows goes to the layout that decodes read anyway.
        if few_s * WORTH_IT <= other_s:
            return rows
    return 0


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
    ratios = [_packed_ratio(plain, packed, rows) for rows in ROWS]
    if ratios[1] > WORTH_IT and sum(ratios) / len(ratios) > WORTH_IT:
        return Layout.PLAIN
    return Layout.BOTH if WORTH_IT * ratios[0] > 1 else Layout.PACKED


def _packed_ratio(plain: Sequence[Tensor], packed: Sequence[Tensor], rows: int) -> float:
    x = torch.ones(rows, plain[0].shape[0], dtype=plain[0].dtype)
    plain_s, packed_s = race(
        lambda: consume(x @ weight for weight in plain),
        lambda: consume(apply_packed(x, weight, None) for weight in packed),
    )
    return packed_s / plain_s


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
