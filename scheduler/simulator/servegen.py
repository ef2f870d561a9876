"""Draws a day of requests from ServeGen's per-client tables.

Each client is a renewal process of its own, a window at a time: Weibull or Gamma gaps of the
window's shape (exponential where none is given) at the window's rate. Lengths are drawn one by
one from the quantiles of the newest window that has some. What is drawn depends on the seed, the
client and the window alone.

Source: alibaba/ServeGen, the model of its paper; the tables are condensed from its data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from scheduler.simulator.errors import SimulationError
from scheduler.simulator.fields import MAX_TIME_S, MAX_TOKENS
from scheduler.simulator.workload import Arrival

# Of one client in one window, so that gaps which are next to nothing end somewhere.
_MAX_ARRIVALS = 1_000_000


def sample_day(day: Mapping[str, Any], *, seed: int, limit: int | None = None) -> list[Arrival]:
    """Draw all arrivals in the order of time, or the first `limit` of them.

    Raises: `SimulationError`: the tables make no requests, of a client and window that is named.
    """
    window_s = float(day["window_s"])
    if not 0.0 < window_s <= MAX_TIME_S:
        raise SimulationError(f"window_s is {window_s:g}, which is no length of time")
    num_windows = max((len(client["rate"]) for client in day["clients"].values()), default=0)
    arrivals: list[Arrival] = []
    for window in range(num_windows):
        drawn = [
            arrival
            for name, client in day["clients"].items()
            for arrival in _draw(name, client, window, window_s, day["quantile_levels"], seed)
        ]
        arrivals += sorted(drawn, key=lambda arrival: arrival.at_s)
        if limit is not None and len(arrivals) >= limit:
            return arrivals[:limit]
    return arrivals


def _draw(
    name: str,
    client: Mapping[str, Any],
    window: int,
    window_s: float,
    levels: Sequence[float],
    seed: int,
) -> list[Arrival]:
    where = f"client {name}, window {window}"
    try:
        drawn = list(
            islice(_window(name, client, window, window_s, levels, seed), _MAX_ARRIVALS + 1)
        )
    except (ArithmeticError, LookupError, TypeError, ValueError) as exc:
        raise SimulationError(f"{where}: {exc!r}") from exc
    if len(drawn) > _MAX_ARRIVALS:
        raise SimulationError(f"{where}: more than {_MAX_ARRIVALS:,} requests")
    return drawn


def _window(
    name: str,
    client: Mapping[str, Any],
    window: int,
    window_s: float,
    levels: Sequence[float],
    seed: int,
) -> Iterator[Arrival]:
    rate = client["rate"][window]
    lengths = _lengths(client["len"], window * window_s)
    if not 0.0 <= rate < math.inf:
        raise ValueError(f"rate {rate} is not 0 or more")
    if not rate or lengths is None:
        return
    draw = np.random.default_rng([seed, *name.encode(), window])
    mean_gap_s = 1 / rate
    # The first gap is under way when the window opens.
    at_s = _gap_s(draw, client["pat"][window], client["shape"][window], mean_gap_s) * draw.random()
    while at_s < window_s:
        prompt, output = (
            _length(float(np.interp(draw.random(), levels, lengths[key])))
            for key in ("input_tokens", "output_tokens")
        )
        yield Arrival(
            at_s=window * window_s + at_s,
            tenant_id=name,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
        )
        at_s += _gap_s(draw, client["pat"][window], client["shape"][window], mean_gap_s)


def _length(num_tokens: float) -> int:
    if not 0.0 <= num_tokens <= MAX_TOKENS:
        raise ValueError(f"a length of {num_tokens:g} is not 0 to {MAX_TOKENS:,} tokens")
    return max(1, round(num_tokens))


def _gap_s(draw: np.random.Generator, pattern: str, shape: float, mean_s: float) -> float:
    if pattern == "W" and shape > 0:
        return float(draw.weibull(shape)) * mean_s / math.gamma(1 + 1 / shape)
    if pattern == "G" and shape > 0:
        return float(draw.gamma(shape)) * mean_s / shape
    return float(draw.exponential()) * mean_s


def _lengths(tables: Mapping[str, Mapping[str, list[float]]], at_s: float) -> Any:
    """Find the newest table that is not empty, or the first one where none is that old."""
    filled = [(float(start), table) for start, table in tables.items() if table]
    if not filled:
        return None
    earlier = [entry for entry in filled if entry[0] <= at_s]
    if earlier:
        return max(earlier, key=lambda entry: entry[0])[1]
    return min(filled, key=lambda entry: entry[0])[1]
