"""Runs that are prepared for a card that is there for a quarter of an hour in all.

Each call is what should be known next: is it still right, and as fast as it was; what was never
measured; what 8 bits and other models give. A call ends earlier where what it has is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A call is cut after this, whatever it still had to do.
CALL_MINUTES = 9.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """Name a part and how long it may take.

    `names` are those of its stages, behind the part's; `models` and `workloads` are what is asked
    for of the part. Nothing is all.
    """

    part: str
    minutes: float
    names: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()


def _bench(minutes: float, *names: str) -> Errand:
    return Errand(part="bench", minutes=minutes, names=names)


def _tune(minutes: float, *names: str) -> Errand:
    return Errand(part="tune", minutes=minutes, names=names, models=("qwen3-8b",))


CALLS: Mapping[int, tuple[Errand, ...]] = {
    1: (
        # Its kernels have half of it.
        Errand(part="correctness", minutes=3.5),
        _bench(1.0, "qwen3-0.6b:nano+decode-sweep"),
        _bench(2.0, "qwen3-8b:decode-sweep+prefill+1k1k"),
        Errand(part="soak", minutes=0.3),
    ),
    2: (
        _bench(2.0, "qwen3-0.6b:peer"),
        _bench(1.5, "qwen3-0.6b:host-share+loop-lag+sampling"),
        _bench(1.5, "qwen3-8b:64k+uneven"),
        _bench(1.0, "qwen3-8b:trace"),
        _tune(2.0, "prefill_attention"),
    ),
    3: (
        _bench(1.5, "qwen3-8b:1k1k:both"),
        _bench(1.5, "qwen3-8b:decode-sweep+prefill:weights"),
        Errand(part="quality", minutes=1.5, models=("qwen3-0.6b",)),
        _bench(1.0, "qwen3-4b:decode-sweep"),
        _bench(1.0, "llama-3.2-1b:decode-sweep"),
        _bench(1.0, "llama-3.1-8b:decode-sweep"),
        _tune(2.0, "decode_attention:fp8", "prefill_attention:fp8", "sizes"),
    ),
}
