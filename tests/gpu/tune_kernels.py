"""Finds how attention kernels are launched fastest on this GPU, and keeps it for the engine.

Each candidate is timed on several batches, by the device's own clock, in a captured graph: what a
launch costs the host is no part of it. The best is the one whose times, relative to the default's,
have the least sum. The engine reads what is kept at its next start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch

from engine.kernels.choose import choose_operations, triton_is_here
from engine.models.hf_config import load_model_config
from scheduler.bench.drive import BenchError
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure
from tests.gpu.asked import Asked
from tests.gpu.attention_cases import DECODES, PREFILLS, AttentionBatch, AttentionCase, Heads
from tests.gpu.shapes import MODELS, model_directory

if TYPE_CHECKING:
    from engine.kernels.tuned import Settings

_CALLS, _REPLAYS = 20, 5
_CASES: Mapping[str, Sequence[AttentionCase]] = {
    "decode_attention": DECODES,
    # What runs at once depends on how decode attention is launched.
    "decode_pieces": DECODES,
    "combine_attention": DECODES,
    "prefill_attention": PREFILLS,
}


def tune_kernel(asked: Asked, name: str) -> Iterator[Part]:
    """Sweep a kernel for every shape of heads that the models have, and keep what is best.

    `name` is a kernel's, with `:fp8` where the cache has 8 bits. The part comes after each
    candidate. Raises: `BenchError`: no kernel is compiled here.
    """
    if not asked.on_gpu or not triton_is_here():
        raise BenchError("kernels are timed on a GPU with Triton")
    kernel, _, eight_bits = name.partition(":")
    kv_dtype = torch.float8_e4m3fn if eight_bits else torch.bfloat16
    part = Part()
    device = torch.device(asked.device)
    for heads in _shapes(asked):
        if asked.deadline.passed:
            sys.stderr.write(f"no time for {kernel} of heads of {heads.head_dim}, {kv_dtype}\n")
            continue
        batches = [
            AttentionBatch(case, heads, dtype=torch.bfloat16, kv_dtype=kv_dtype, device=device)
            for case in _CASES[kernel]
        ]
        yield from _tune(kernel, batches, asked, part)


def _tune(
    kernel: str, batches: Sequence[AttentionBatch], asked: Asked, part: Part
) -> Iterator[Part]:
    from engine.kernels import tuned

    device = batches[0].q.device
    operations = choose_operations(device)
    key = _key(kernel, batches[0])
    default = _times_ms(lambda batch: batch.attend(operations), batches)
    assert default is not None, "the default fits"
    tried: list[tuple[Settings, list[float]]] = []
    name = f"tune_{kernel}_{key.replace('-', '_')}"
    for candidate in tuned.candidates(kernel):
        if asked.deadline.passed:
            break
        with tuned.trying(kernel, candidate):
            for batch in batches:
                batch.part()
            found = _times_ms(lambda batch: batch.attend(operations), batches)
        if found is not None:
            tried.append((candidate, found))
            part.samples[name] = {
                "default_ms": default,
                "candidates": [{**candidate, "ms": times} for candidate, times in tried],
            }
            yield part
    best = choose_best(default, tried)
    if best is None:
        part.rows.append(Row(f"{kernel} {key}", None, note="the default is best"))
        yield part
        return
    chosen, gain = best
    tuned.save(kernel, key, device, chosen, directory=asked.tuned_settings)
    part.figures[f"{name}_gain"] = Figure(gain, "ratio")
    part.rows.append(Row(f"{kernel} {key}", None, note=f"{chosen}, {gain:.2f}× the default"))
    yield part


def choose_best(
    default: Sequence[float], tried: Sequence[tuple[Settings, Sequence[float]]]
) -> tuple[Settings, float] | None:
    """Pick the settings with the least relative times, and tell how much faster they are.

    None: no candidate is faster than the default by more than a hundredth.
    """
    if not tried:
        return None

    def relative(times: Sequence[float]) -> float:
        return sum(own / base for own, base in zip(times, default, strict=True)) / len(default)

    settings, times = min(tried, key=lambda entry: relative(entry[1]))
    gain = 1 / relative(times)
    return (settings, gain) if gain > 1.01 else None


def _times_ms(
    work: Callable[[AttentionBatch], object], batches: Sequence[AttentionBatch]
) -> list[float] | None:
    """Time one call on each batch; None where the settings do not run on the device."""
    try:
        return [_time_ms(lambda batch=batch: work(batch)) for batch in batches]  # type: ignore[misc]
    # Triton's own classes for what does not fit differ by version; anything else shows in tests.
    except Exception as error:
        sys.stderr.write(f"  does not run: {type(error).__name__}: {error}\n")
        return None


def _time_ms(work: Callable[[], object]) -> float:
    work()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            work()
    graph.replay()
    times = []
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / _CALLS)
    return median(times)


def _shapes(asked: Asked) -> list[Heads]:
    """List the shapes of heads of the models that are asked for, each head_dim once."""
    by_head_dim: dict[int, Heads] = {}
    for model in filter(asked.wants, MODELS):
        with model_directory(model) as directory:
            config = load_model_config(directory)
        heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        by_head_dim.setdefault(config.head_dim, heads)
    return list(by_head_dim.values())


def _key(kernel: str, batch: AttentionBatch) -> str:
    """Name what the settings are kept under, as the kernel looks them up."""
    from engine.kernels.attention_decode import decode_key
    from engine.kernels.attention_prefill import prefill_key

    if kernel == "combine_attention":
        return f"d{batch.q.shape[2]}"
    if kernel == "prefill_attention":
        return prefill_key(batch.q, batch.k_cache)
    return decode_key(batch.k_cache, batch.q.dtype)
