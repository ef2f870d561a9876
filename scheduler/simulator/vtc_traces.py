"""The synthetic workloads of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.

They draw from the same generator in the same order as its artifact (fair_bench/trace.py and
exp_suite.py, seed 42), so arrivals are the artifact's own. "Uniform" is a fixed gap after a random
phase; on/off is of the first client, by whole minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.simulator.workload import Arrival, Workload

_SEED = 42
_ON_OFF_S = 60.0

_Lengths = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Send requests of `lengths` (prompt, output) at `rates`, one a client, for `duration_s`."""

    rates: Sequence[float]
    duration_s: float
    lengths: _Lengths = (256, 256)
    weights: Sequence[float] | None = None
    on_off: bool = False


UNIFORM: Mapping[str, Clients] = {
    "overload": Clients(rates=(1.5, 3.0), duration_s=360),
    "overload-multi": Clients(rates=(0.4,) * 3 + (0.6,) * 5, duration_s=360),
    "proportional": Clients(rates=(0.25, 0.5, 1.5), duration_s=600),
    "on_off_less": Clients(rates=(0.5, 2.0), duration_s=600, on_off=True),
    "on_off_overload": Clients(rates=(2.0, 3.0), duration_s=600, on_off=True),
    "overload-weighted": Clients(
        rates=(0.8, 0.8, 1.2, 1.6), duration_s=360, weights=(1.0, 2.0, 3.0, 4.0)
    ),
}


def workload_names() -> list[str]:
    return [*UNIFORM, *_OTHERS]


def vtc_workload(name: str) -> Workload:
    """Generate the workload `name` of the paper's suite."""
    if name in UNIFORM:
        clients = UNIFORM[name]
        arrivals = list(uniform(clients, np.random.RandomState(_SEED)))
        return _workload(name, arrivals, clients.duration_s)
    duration_s, generate = _OTHERS[name]
    return _workload(name, list(generate(np.random.RandomState(_SEED), duration_s)), duration_s)


def uniform(
    clients: Clients, draw: np.random.RandomState, *, start_s: float = 0.0
) -> Iterator[Arrival]:
    """Let each client send at a fixed gap, after a phase that is drawn for it."""
    for client, rate in enumerate(clients.rates):
        at_s = start_s + draw.rand() / rate
        weight = clients.weights[client] if clients.weights else 1.0
        for _ in range(int(rate * clients.duration_s)):
            at_s += 1 / rate
            if not (clients.on_off and client == 0 and _is_off(at_s)):
                yield _arrival(client, at_s, clients.lengths, weight)


def _increase(draw: np.random.RandomState, duration_s: float) -> Iterator[Arrival]:
    """Keep one client steady while the other one rises from 0.2 to 2 requests a second."""
    for number in range(int(0.5 * duration_s)):
        yield _arrival(0, (number + 1) / 0.5, (256, 256))
    at_s = 0.0
    for _ in range(int(0.5 * (0.2 + 2.0) * duration_s)):
        at_s += 1 / (0.2 + (2.0 - 0.2) * at_s / duration_s)
        yield _arrival(1, at_s, (256, 256))


def _dist_shift(draw: np.random.RandomState, duration_s: float) -> Iterator[Arrival]:
    """Go through three phases: on/off, both overloading, in proportion."""
    part_s = duration_s / 3
    phases = [((0.5, 2.0), True), ((1.0, 1.0), False), ((0.5, 1.5), False)]
    for number, (rates, on_off) in enumerate(phases):
        clients = Clients(rates=rates, duration_s=part_s, on_off=on_off)
        yield from uniform(clients, draw, start_s=number * part_s)


def _short_long(draw: np.random.RandomState, duration_s: float) -> Iterator[Arrival]:
    return _poisson(draw, duration_s, (64, 64), (256, 256))


def _short_long_2(draw: np.random.RandomState, duration_s: float) -> Iterator[Arrival]:
    return _poisson(draw, duration_s, (512, 32), (32, 512))


def _poisson(
    draw: np.random.RandomState, duration_s: float, first: _Lengths, second: _Lengths
) -> Iterator[Arrival]:
    """Mix two Poisson streams, of 8 and of 1.5 requests a second."""
    rates = (8.0, 1.5)
    count = int(sum(rates) * duration_s)
    is_second = draw.rand(count) > rates[0] / sum(rates)
    gaps_s = draw.gamma(1.0, 1 / sum(rates), count)
    for at_s, second_one in zip(np.cumsum(gaps_s), is_second, strict=True):
        yield _arrival(int(second_one), float(at_s), second if second_one else first)


_OTHERS = {
    "poisson_short_long": (600.0, _short_long),
    "poisson_short_long_2": (600.0, _short_long_2),
    "increase": (600.0, _increase),
    "dist_shift": (900.0, _dist_shift),
}


def late_joiner() -> Workload:
    """Let a client overload from the start, and another one from 300 s on, for 400 s in all."""
    draw = np.random.RandomState(_SEED)
    first = uniform(Clients(rates=(3.0,), duration_s=400), draw)
    second = uniform(Clients(rates=(3.0,), duration_s=100), draw, start_s=300)
    arrivals = [*first, *(_arrival(1, a.at_s, (256, 256)) for a in second)]
    return _workload("late_joiner", arrivals, 400)


def _is_off(at_s: float) -> bool:
    return int(at_s // _ON_OFF_S) % 2 == 1


def _arrival(client: int, at_s: float, lengths: _Lengths, weight: float = 1.0) -> Arrival:
    return Arrival(
        at_s=at_s,
        tenant_id=f"client-{client}",
        num_prompt_tokens=lengths[0],
        num_output_tokens=lengths[1],
        weight=weight,
    )


def _workload(name: str, arrivals: list[Arrival], duration_s: float) -> Workload:
    arrivals.sort(key=lambda arrival: arrival.at_s)
    return Workload(name=name, arrivals=arrivals, duration_s=duration_s)
