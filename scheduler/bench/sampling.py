"""What a draw takes, by how rows draw and how many there are, with nothing else in the step.

**Logits.** Of two kinds, in the model's type. Peaked ones: a normal bulk of standard deviation 2,
and above it 1,000 tokens at random places whose probability falls with their rank to the power of
-1.5, the first with a logit of 20; top-p of 0.95 keeps about a hundred. Flat ones are the bulk
alone, of which top-p keeps much. On a GPU draws take turns on logits of more bytes than its cache
has.

**Time.** On a GPU the draws are recorded as one graph, as in a step. A figure in passes is how
often the logits could have been read meanwhile, at the rate at which this machine copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure
from scheduler.bench.setup import Bench

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# An H200's cache has 50 MB; a model leaves more than this free.
_LOGIT_BYTES_GPU, _LOGIT_BYTES_CPU = 128 << 20, 64 << 10
_NUM_LIKELY, _FIRST_LIKELY, _EXPONENT = 1000, 20.0, 1.5
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Say how all rows draw, in `SamplingParams`' meaning, and from what."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    is_flat: bool = False


KINDS: Mapping[str, Kind] = {
    "greedy": Kind(temperature=0.0),
    "temperature": Kind(temperature=0.6),
    "top_k": Kind(top_k=50),
    "top_p": Kind(top_p=0.95),
    "top_k_top_p": Kind(top_k=50, top_p=0.95),
    "min_p": Kind(min_p=0.05),
    "flat_temperature": Kind(is_flat=True),
    "flat_top_p": Kind(top_p=0.95, is_flat=True),
}


def sampling(bench: Bench) -> Part:
    """Draw from logits of 1 and 256 rows (8 on a CPU), a kind of drawing after the other."""
    part = Part()
    most = 256 if bench.options.on_gpu else 8
    for batch in bench.options.batches or (1, most):
        batch = min(batch, bench.info.max_num_seqs)
        for is_flat in (False, True):
            draws = _Draws(bench, batch, is_flat=is_flat)
            for name, kind in KINDS.items():
                if kind.is_flat == is_flat:
                    _add(bench, part, draws, name, kind)
    return part


def _add(bench: Bench, part: Part, draws: _Draws, name: str, kind: Kind) -> None:
    """Time one kind, and say so."""
    times_us = [seconds * 1e6 for seconds in draws.times_s(kind, bench.options.rounds)]
    taken_us = median(times_us)
    passes = taken_us / 1e6 * bench.ceilings.copy_bytes_per_s / draws.logit_bytes
    figure = f"sampling_{bench.subject}_{name}_b{draws.num_rows}"
    part.figures[f"{figure}_us"] = Figure(taken_us, "us")
    part.figures[f"{figure}_passes"] = Figure(passes, "passes")
    part.samples[f"{name} b{draws.num_rows}"] = times_us
    part.rows.append(
        Row(
            f"{name}, batch {draws.num_rows}",
            draws.num_rows / taken_us * 1e6,
            note=f"{taken_us:,.1f} µs, {passes:.1f} passes over the logits",
        )
    )


class _Draws:
    """Hold logits for many draws of so many rows; `logit_bytes` are those of one."""

    def __init__(self, bench: Bench, num_rows: int, *, is_flat: bool) -> None:
        import torch

        info = bench.info
        self.num_rows = num_rows
        self._device = torch.device(bench.options.device)
        dtype = getattr(torch, info.dtype)
        self.logit_bytes = num_rows * info.vocab_size * dtype.itemsize
        budget = _LOGIT_BYTES_GPU if bench.options.on_gpu else _LOGIT_BYTES_CPU
        num_draws = max(2, -(-budget // self.logit_bytes))
        self._logits = make_logits(
            num_draws * num_rows, info.vocab_size, is_flat=is_flat, device=self._device
        ).to(dtype)

    def times_s(self, kind: Kind, num_rounds: int) -> list[float]:
        """Return what a draw took, a value a round."""
        import torch

        run = self._prepare(kind)
        num_draws = len(self._logits) // self.num_rows
        # What is compiled at a first call must not be so while a graph is recorded.
        run()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            graph.replay()
            times = _time_on_device_s(graph.replay, num_rounds)
        else:
            times = _time_on_host_s(run, num_rounds)
        return [seconds / num_draws for seconds in times]

    def _prepare(self, kind: Kind) -> Callable[[], None]:
        """Return what draws once from all logits."""
        import torch

        from engine.kernels.choose import choose_operations
        from engine.kernels.operations import DrawColumns

        def column(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.full((self.num_rows + 1,), value, dtype=dtype, device=self._device)

        columns = DrawColumns(
            temperature=column(kind.temperature),
            top_k=column(kind.top_k, torch.int32),
            top_p=column(kind.top_p),
            min_p=column(kind.min_p),
            seeds=torch.arange(self.num_rows + 1, device=self._device),
        )
        slots = torch.arange(self.num_rows, dtype=torch.int32, device=self._device)
        positions = torch.zeros_like(slots)
        tokens = torch.zeros((self.num_rows + 1, 1), dtype=torch.int32, device=self._device)
        draw = choose_operations(self._device).draw

        def run() -> None:
            for logits in self._logits.view(-1, self.num_rows, self._logits.shape[1]):
                draw(logits, columns, slots, positions, tokens)

        return run


def make_logits(num_rows: int, vocab_size: int, *, is_flat: bool, device: torch.device) -> Tensor:
    """Make logits as the module says; float32, [num_rows, vocab_size]."""
    import torch

    generator = torch.Generator(device).manual_seed(_SEED)
    logits = torch.randn(num_rows, vocab_size, generator=generator, device=device) * 2
    if not is_flat:
        num_likely = min(_NUM_LIKELY, vocab_size)
        ranks = torch.arange(1, num_likely + 1, dtype=torch.float32, device=device)
        likely = _FIRST_LIKELY - _EXPONENT * ranks.log()
        for row in logits:
            places = torch.randperm(vocab_size, generator=generator, device=device)
            row[places[:num_likely]] = likely
    return logits


def _time_on_host_s(run: Callable[[], None], num_rounds: int) -> list[float]:
    times = []
    for _ in range(num_rounds):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return times


def _time_on_device_s(run: Callable[[], None], num_rounds: int) -> list[float]:
    import torch

    # torch types this constructor not at all.
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(num_rounds + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    marks[-1].synchronize()
    return [float(begin.elapsed_time(end)) / 1000 for begin, end in pairwise(marks)]
