"""Multiply a few rows with a weight, and do what a decoder does before and behind, in one launch.

A step of a few tokens costs what reading the weights costs, so that is all a program does: it has a
few lines of the weight, reads each number once for all rows, and keeps the next tile on its way
while it multiplies the one that has come. Products are added up in float32 by the thread that read
them, eight at a time as they lie in its 16 bytes, and exchanged between threads at the end alone.

The norm costs no pass of its own. Its weight scales the row as it is read, and a row's root mean
square, which is one number for all products, is gathered beside them and divided by at the end.
Every program reads the rows anew, a few kilobytes that its multiprocessor keeps. The residual
stream is added behind, where a program has numbers of its own, so no number is written twice.

For SwiGLU a tile has lines of both halves in turn, so that a gate and what it gates meet in one
program. A row's numbers touch no other row's: what is NaN stays there.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import dependent_launch, tuned
from engine.kernels.dependent_launch import await_predecessor
from engine.kernels.operations import MATVEC_ROWS

# Numbers of a line that a thread reads at once: 16 bytes of bfloat16.
_VECTOR = 8
# Lines of a weight that is narrow.
_NARROW = 2048


def matvec(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    rows: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    out: Tensor | None = None,
    dependent: bool = False,
) -> Tensor:
    """Compute what `Operations.matvec` says."""
    num_rows = x.shape[0] if rows is None else len(rows)
    num_lines, in_size = weight.shape
    out_size = num_lines // 2 if gated else num_lines
    assert num_rows <= MATVEC_ROWS
    assert not gated or residual is None
    assert x.stride(1) == 1
    if out is None:
        out = x.new_empty(num_rows, out_size)
    if num_rows == 0:
        return out
    settings = tuned.settings("matvec", matvec_key(weight, num_rows), x.device)
    columns = max(triton.next_power_of_2(in_size), _VECTOR)
    _matvec_kernel[(triton.cdiv(num_lines, settings["LINES"]),)](
        x,
        x if norm is None else norm,
        x if rows is None else rows,
        weight,
        weight if bias is None else bias,
        x if residual is None else residual,
        out,
        x.stride(0),
        weight.stride(0),
        weight.stride(1),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        eps,
        HAS_NORM=norm is not None,
        HAS_ROWS=rows is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        IS_GATED=gated,
        ROWS=num_rows,
        ROWS_BLOCK=triton.next_power_of_2(num_rows),
        IN_SIZE=in_size,
        OUT_SIZE=out_size,
        LINES=settings["LINES"],
        COLUMNS=min(columns, settings["COLUMNS"]),
        VECTOR=_VECTOR,
        num_warps=settings["num_warps"],
        num_stages=settings["num_stages"],
        **dependent_launch.options(dependent),
    )
    return out


def matvec_key(weight: Tensor, num_rows: int) -> str:
    """Name what tuned settings depend on, such as "wide-r4-bfloat16"."""
    width = "narrow" if len(weight) < _NARROW else "wide"
    dtype = str(weight.dtype).removeprefix("torch.")
    return f"{width}-r{triton.next_power_of_2(num_rows)}-{dtype}"


@triton.jit
def _matvec_kernel(
    x: tl.tensor,
    norm: tl.tensor,
    rows: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    line_stride: tl.tensor,
    column_stride: tl.tensor,
    residual_stride: tl.tensor,
    out_stride: tl.tensor,
    eps: tl.tensor,
    HAS_NORM: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    ROWS: tl.constexpr,
    ROWS_BLOCK: tl.constexpr,
    IN_SIZE: tl.constexpr,
    OUT_SIZE: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    # Beyond the last line it is read again, and what comes of it is not stored.
    lines = tl.program_id(0) * LINES + tl.arange(0, LINES)
    if IS_GATED:
        places = tl.program_id(0) * (LINES // 2) + tl.arange(0, LINES // 2)
        lines = tl.minimum(lines // 2, OUT_SIZE - 1) + lines % 2 * OUT_SIZE
    else:
        places = lines
        lines = tl.minimum(lines, OUT_SIZE - 1)
    columns = tl.arange(0, COLUMNS)[None, :]
    pointers = weight + lines[:, None].to(tl.int64) * line_stride + columns * column_stride
    tile = _load_once(pointers, columns < IN_SIZE)
    if HAS_BIAS:
        biases = tl.load(bias + lines).to(tl.float32)
    await_predecessor(DEPENDENT)

    sums = (tl.zeros([LINES, COLUMNS // VECTOR], tl.float32),) * ROWS
    squares = (tl.zeros([1, COLUMNS // VECTOR], tl.float32),) * ROWS
    starts = ()
    added = ()
    for row in tl.static_range(ROWS):
        source = row
        if HAS_ROWS:
            source = tl.load(rows + row)
        starts = _append(starts, x + source * x_stride + columns)
        if HAS_RESIDUAL:
            # Read here, for at the end it would be waited for.
            line = residual + row * residual_stride + places[:, None]
            added = _append(added, tl.load(line, mask=places[:, None] < OUT_SIZE, other=0.0))
    for begin in range(0, IN_SIZE, COLUMNS):
        end = begin + COLUMNS
        next_tile = _load_once(pointers + end * column_stride, columns + end < IN_SIZE)
        factors = tile.to(tl.float32)
        inside = columns + begin < IN_SIZE
        if HAS_NORM:
            scales = tl.load(norm + begin + columns, mask=inside, other=0.0).to(tl.float32)
        new_sums = ()
        new_squares = ()
        for row in tl.static_range(ROWS):
            values = tl.load(starts[row] + begin, mask=inside, other=0.0).to(tl.float32)
            if HAS_NORM:
                new_squares = _append(new_squares, squares[row] + _add_up(values * values, VECTOR))
                values *= scales
            new_sums = _append(new_sums, sums[row] + _add_up(factors * values, VECTOR))
        sums = new_sums
        if HAS_NORM:
            squares = new_squares
        tile = next_tile

    # [LINES, ROWS_BLOCK]
    total = tl.sum(_stack(sums, ROWS), axis=1)
    if HAS_NORM:
        total *= tl.rsqrt(tl.sum(_stack(squares, ROWS), axis=1) / IN_SIZE + eps)
    if HAS_BIAS:
        total += biases[:, None]
    if IS_GATED:
        pairs = tl.reshape(total, [LINES // 2, 2, ROWS_BLOCK])
        gate, up = tl.split(tl.permute(pairs, (0, 2, 1)))
        total = gate / (1 + tl.exp(-gate)) * up
    if HAS_RESIDUAL:
        total += tl.reshape(_stack(added, ROWS), [LINES, ROWS_BLOCK]).to(tl.float32)
    numbers = tl.arange(0, ROWS_BLOCK)[None, :]
    there = (places[:, None] < OUT_SIZE) & (numbers < ROWS)
    targets = out + numbers * out_stride + places[:, None]
    tl.store(targets, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _load_once(pointers: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Load what no other program needs, and leave the caches to what they do."""
    return tl.load(pointers, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _add_up(products: tl.tensor, VECTOR: tl.constexpr) -> tl.tensor:
    """Add up what one thread has of each line; [n, size] → [n, size // VECTOR]."""
    size: tl.constexpr = products.shape[1] // VECTOR
    return tl.sum(tl.reshape(products, [products.shape[0], size, VECTOR]), axis=2)


@triton.jit
def _append(some: tl.tuple, one: tl.tensor) -> tl.tuple:
    return some + (one,)  # noqa: RUF005  Triton unpacks nothing


@triton.jit
def _stack(some: tl.tuple, NUM: tl.constexpr) -> tl.tensor:
    """Put up to four tensors side by side, so that one exchange between threads does for all.

    Returns: [..., a power of two]; with three the last is there twice.
    """
    if NUM == 1:
        stacked = tl.expand_dims(some[0], 2)
    elif NUM == 2:
        stacked = tl.join(some[0], some[1])
    else:
        pairs = tl.join(tl.join(some[0], some[2]), tl.join(some[1], some[NUM - 1]))
        stacked = tl.reshape(pairs, [pairs.shape[0], pairs.shape[1], 4])
    return stacked
