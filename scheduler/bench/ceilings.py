"""Measures what a machine can do at best: copy memory, and multiply matrices, through torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from scheduler.bench.roofline import Ceilings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PROBE_SIZE, _LARGEST_SIZE = 256, 2048
_MOST_S = 1.0
_Work = Callable[[], object]


def measure_ceilings(*, device: str, dtype: str, rounds: int = 5) -> Ceilings:
    """Time large copies and products of random numbers; each ceiling is the best of a few medians.

    A median is of so many rounds.
    The best, because a ceiling that a neighbour lowered would flatter whatever is held against it.
    """
    import torch

    target = torch.device(device)
    large = target.type == "cuda"
    num_bytes = 1 << 30 if large else 256 << 20
    generator = torch.Generator(target).manual_seed(0)
    # Random content: zeros run faster than real data would on some devices.
    source = torch.rand(num_bytes // 4, generator=generator, device=target)
    copy = torch.empty_like(source)
    time_s = _time_on_device_s if large else _time_on_host_s
    copy_s = _best_s(time_s, lambda: copy.copy_(source), rounds)

    def product(size: int) -> _Work:
        a, b = (torch.randn(size, size, generator=generator, device=target) for _ in range(2))
        return _product(a, b, getattr(torch, dtype))

    size = 8192 if large else choose_size(_best_s(time_s, product(_PROBE_SIZE), rounds))
    product_s = _best_s(time_s, product(size), rounds)
    return Ceilings(2 * num_bytes / copy_s, 2 * size**3 / product_s)


def choose_size(probe_s: float) -> int:
    """Choose the size of a host's products by how long one of 256 rows takes, in seconds.

    With 16 bits, a processor that has no instructions for them would take minutes in all.
    """
    size = _LARGEST_SIZE
    while size > _PROBE_SIZE and probe_s * (size / _PROBE_SIZE) ** 3 > _MOST_S:
        size //= 2
    return size


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> _Work:
    """Prepare a product in a type; one of 8 bits as linear layers have it, scaled by row."""
    import torch

    if dtype != torch.float8_e4m3fn:
        a, b = a.to(dtype), b.to(dtype)
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)
    left, right = a.to(dtype), b.to(dtype).t()
    scales = torch.ones(len(a), 1, device=a.device)
    return lambda: torch._scaled_mm(
        left,
        right,
        scale_a=scales,
        scale_b=scales.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )


def _best_s(time_s: Callable[[_Work], float], work: _Work, rounds: int) -> float:
    """Return the least of two medians of the time that `work` takes, after a warm-up."""
    work()
    return min(median(time_s(work) for _ in range(rounds)) for _ in range(2))


def _time_on_host_s(work: _Work) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _time_on_device_s(work: _Work) -> float:
    import torch

    # torch types this constructor not at all.
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
