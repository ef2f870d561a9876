"""Maps the clients of a trace to weights, bands and promises, by a small TOML file.

    [[tier]]
    clients = ["0-9", "133"]       # numbers, ranges of numbers, or names; "*" is everyone else
    weight = 4
    band = "priority"              # priority, default, flex or batch
    ttft_s = 1.0                   # promises; also tpot_s and max_gap_s
    patience_s = 30                # nobody waits longer for the first token
    window_s = 86400               # of the band batch: by when the answer is to be there

The first tier that names a client is its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from scheduler.request import BANDS, Band, Slo
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.workload import Arrival, Workload

_EVERYONE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Say what its clients are to the scheduler; see `scheduler.simulator.workload.Arrival`."""

    clients: Sequence[str] = (_EVERYONE,)
    weight: float = 1.0
    band: Band = Band.DEFAULT
    ttft_s: float | None = None
    tpot_s: float | None = None
    max_gap_s: float | None = None
    patience_s: float | None = None
    window_s: float | None = None

    def names(self, client: str) -> bool:
        return any(_matches(pattern, client) for pattern in self.clients)

    def apply(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival,
            weight=self.weight,
            band=self.band,
            slo=Slo(self.ttft_s, self.tpot_s, self.max_gap_s),
            patience_s=self.patience_s,
            ttlt_s=self.window_s,
        )


def read_tiers(path: Path) -> list[Tier]:
    """Read a file of tiers. Raises: `SimulationError`: it does not read, or has unknown keys."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
        return [_tier(table) for table in document["tier"]]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise SimulationError(f"{path}: {exc}") from exc
    except (KeyError, TypeError, ValueError, SimulationError) as exc:
        names = ", ".join(field.name for field in fields(Tier))
        raise SimulationError(f"{path}: {exc}; it has [[tier]] tables of {names}") from exc


def apply_tiers(workload: Workload, tiers: Sequence[Tier]) -> Workload:
    """Give every client its tier; one that no tier names stays as it is."""
    tier_of: dict[str, Tier | None] = {}
    for arrival in workload.arrivals:
        client = arrival.tenant_id
        if client not in tier_of:
            tier_of[client] = next((tier for tier in tiers if tier.names(client)), None)
    arrivals = [
        arrival if (tier := tier_of[arrival.tenant_id]) is None else tier.apply(arrival)
        for arrival in workload.arrivals
    ]
    return replace(workload, arrivals=arrivals)


def _tier(table: Mapping[str, Any]) -> Tier:
    values = dict(table)
    unknown = values.keys() - {field.name for field in fields(Tier)}
    if unknown:
        raise SimulationError(f"unknown: {', '.join(sorted(unknown))}")
    clients = values.pop("clients", [_EVERYONE])
    values["clients"] = tuple(str(c) for c in (clients if isinstance(clients, list) else [clients]))
    if "band" in values:
        try:
            values["band"] = BANDS[str(values["band"]).lower()]
        except KeyError:
            names = ", ".join(BANDS)
            raise SimulationError(f"no band {values['band']!r}: choose one of {names}") from None
    for name in values.keys() - {"clients", "band"}:
        if not isinstance(values[name], int | float) or not values[name] > 0:
            raise SimulationError(f"{name} must be a number above 0")
    return Tier(**values)


def _matches(pattern: str, client: str) -> bool:
    if pattern in (_EVERYONE, client):
        return True
    first, dash, last = pattern.partition("-")
    if not (dash and first.isdigit() and last.isdigit() and client.isdigit()):
        return False
    return int(first) <= int(client) <= int(last)
