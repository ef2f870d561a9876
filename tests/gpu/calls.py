"""Runs that are prepared for a card that is there for ten minutes at a time.

Each call is what should be known next: does it run, and is it right; how is it launched best, and
how fast is it then; where does the time go.
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
        _bench(2.0, "qwen3-0.6b:decode-sweep"),
        Errand(part="correctness", minutes=7.0),
    ),
    2: (
        # Others, of 8 bits and of sizes, come if time is left.
        _tune(4.0, "decode_attention", "combine_attention", "prefill_attention"),
        _bench(1.25, "qwen3-0.6b:nano"),
        _bench(2.25, "qwen3-8b:1k1k"),
        _tune(2.0, "decode_attention:fp8", "prefill_attention:fp8", "sizes"),
    ),
    3: (
        _bench(2.0, "qwen3-8b:decode-sweep+prefill"),
        _bench(1.5, "qwen3-8b:trace", "qwen3-8b:sampling"),
        Errand(part="profile", minutes=2.0, names=("qwen3-8b",)),
        Errand(part="soak", minutes=0.75),
        _bench(2.5, "qwen3-0.6b:peer"),
    ),
}
