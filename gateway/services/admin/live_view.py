"""What this process does now, in one view for all who watch: queues, rates, promises, shares.

A view is made at most once a second, however many ask for it. Names of the tenants in it are read
from the database as they come, and anew every ten seconds; they are ids where it does not answer.
Rates are over the last ten seconds, requests that ended over the last minute. Of each band the
busiest tenants are shown, with the part of its service that each has a right to now and the part
that it received since the view before, or where there was none in the last whole minute.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any, Final, Protocol
from uuid import UUID

from gateway.background import Background
from gateway.domain import Tenant
from gateway.errors import StoreUnavailable
from gateway.ports import Clock
from gateway.services.requests.recent import WINDOW_S, Recent, RecentRequests
from scheduler.order import BandShares
from scheduler.request import Band
from scheduler.state import SchedulerState, Snapshot, TenantState

VIEW_S: Final = 1.0
NAMES_S: Final = 10.0
# Of a view: those who wait and run the most, and those whose first tokens took longest.
MAX_SHARES: Final = 20
MAX_SLOWEST: Final = 10
_RATE_S: Final = 10


class ShowsScheduling(Protocol):
    """Offer what `scheduler.service.EngineService` tells of its scheduler."""

    def state(self, *, max_tenants: int | None = None) -> SchedulerState: ...

    def shares(self) -> tuple[BandShares, ...]: ...

    def snapshot(self) -> Snapshot: ...


class IsScheduled(Protocol):
    """Name what is scheduled; `ServedModel` is one."""

    @property
    def name(self) -> str: ...

    @property
    def service(self) -> ShowsScheduling: ...


class NamesTenants(Protocol):
    async def named(self, ids: Collection[UUID]) -> Mapping[UUID, Tenant]: ...


class LiveView:
    """Show what is going on; enter `running` for rates."""

    def __init__(
        self,
        models: Iterable[IsScheduled],
        tenants: NamesTenants,
        recent: RecentRequests,
        *,
        clock: Clock = time,
    ) -> None:
        self._models = tuple(models)
        self._tenants = tenants
        self._recent = recent
        self._clock = clock
        self._making = asyncio.Lock()
        self._view: tuple[float, dict[str, Any]] | None = None
        # Names, when they are to be read anew, and whom nobody could name until then.
        self._names: dict[str, Tenant] = {}
        self._names_until_s = -math.inf
        self._nameless: set[str] = set()
        # What bands and their tenants had been served by the view before.
        self._served: dict[tuple[str, ...], float] = {}
        self._counted: deque[tuple[float, Sequence[Snapshot]]] = deque(maxlen=_RATE_S + 1)

    def running(self) -> Background:
        """Count tokens once a second while the block runs."""
        return Background("counting tokens", self.count, interval_s=1.0, at_once=True)

    async def count(self) -> None:
        """Note what was computed so far."""
        counts = [model.service.snapshot() for model in self._models]
        self._counted.append((self._clock.monotonic(), counts))

    async def show(self) -> dict[str, Any]:
        """Return the view of this second; whoever asks within it gets the same one."""
        async with self._making:
            now = self._clock.monotonic()
            if self._view is None or now - self._view[0] >= VIEW_S:
                states = [model.service.state(max_tenants=MAX_SHARES) for model in self._models]
                recent = self._recent.sums()
                named = await self._named(_shown_ids(states, recent), now)
                self._view = (now, self._made(states, recent, named))
            return self._view[1]

    def of_tenant(self, tenant_id: UUID) -> dict[str, Any]:
        """Return how one tenant's requests of the last minute ended, and nothing of others."""
        return _shown(self._recent.of(tenant_id))

    async def _named(self, ids: set[str], now: float) -> Mapping[str, Tenant]:
        """Return tenants by id, as far as they are known: of ten thousand a view shows some."""
        if now >= self._names_until_s:
            self._names_until_s, self._nameless = now + NAMES_S, set()
            unknown = ids
        else:
            unknown = ids - self._names.keys() - self._nameless
        if unknown:
            # What is away is not asked again at once.
            self._nameless |= unknown
            with suppress(StoreUnavailable):
                found = await self._tenants.named([UUID(one) for one in unknown])
                kept = {one: self._names[one] for one in ids - unknown if one in self._names}
                self._names = kept | {str(tenant_id): one for tenant_id, one in found.items()}
                self._nameless -= self._names.keys()
        return self._names

    def _made(
        self,
        states: Sequence[SchedulerState],
        recent: Mapping[UUID | None, Recent],
        named: Mapping[str, Tenant],
    ) -> dict[str, Any]:
        whole = Recent()
        for one in recent.values():
            whole.add(one)
        return {
            "at": datetime.fromtimestamp(self._clock.time(), UTC),
            "window_s": WINDOW_S,
            "models": [
                self._model(model.name, number, state)
                for number, (model, state) in enumerate(zip(self._models, states, strict=True))
            ],
            "bands": _bands(states),
            "ended": _shown(whole),
            "first_tokens": asdict(self._recent.first_tokens()),
            "fairness": _fairness(self._models),
            "shares": self._shares(states, named)[:MAX_SHARES],
            "slowest": _slowest(recent, named),
        }

    def _model(self, name: str, number: int, state: SchedulerState) -> dict[str, Any]:
        counts = state.counts
        return {
            "model": name,
            "policy": state.config.fairness.policy,
            "queued": counts.queued,
            "running": counts.running,
            "kv_used": round(1.0 - counts.free_blocks / max(1, counts.total_blocks), 4),
            "backlog_s": round(state.backlog_s, 3),
            "prompt_tokens_per_s": self._rate(number, "num_prompt_tokens"),
            "output_tokens_per_s": self._rate(number, "num_output_tokens"),
            "num_rejected": counts.num_rejected,
            "num_preemptions": counts.num_preemptions,
        }

    def _rate(self, number: int, name: str) -> float | None:
        """Return how many a second; None before two counts are there."""
        if len(self._counted) < 2:
            return None
        (from_s, before), (to_s, after) = self._counted[0], self._counted[-1]
        grown = getattr(after[number], name) - getattr(before[number], name)
        return round(grown / (to_s - from_s), 1) if to_s > from_s else None

    def _shares(
        self, states: Sequence[SchedulerState], named: Mapping[str, Tenant]
    ) -> list[dict[str, Any]]:
        """Return the tenants of each model's bands, those with the most requests first."""
        before, self._served = self._served, {}
        shown = []
        for model, state in zip(self._models, states, strict=True):
            minute = _of_minute(model.service.shares())
            for band in state.bands:
                whole = self._grown(before, band.service, model.name, band.band.name)
                for tenant in band.tenants:
                    name = (model.name, band.band.name, tenant.tenant_id)
                    part, received = self._grown(before, tenant.service, *name), None
                    if whole is not None and part is not None:
                        received = part / whole if whole > 0 else None
                    else:
                        received = minute.get((band.band, tenant.tenant_id))
                    share = _share(tenant, band.band, received, named)
                    shown.append({"model": model.name} | share)
        return sorted(shown, key=lambda one: (-(one["queued"] + one["running"]), one["tenant"]))

    def _grown(
        self, before: Mapping[tuple[str, ...], float], served: float, *name: str
    ) -> float | None:
        """Note what was served by now; return what of it since the view before, None: unknown."""
        self._served[name] = served
        then = before.get(name)
        # One that was forgotten meanwhile began anew.
        return None if then is None else served - then if served >= then else served


def _fairness(models: Iterable[IsScheduled]) -> list[dict[str, Any]]:
    """Return Jain's index of each band in the last whole minute, where tenants met."""
    return [
        {
            "model": model.name,
            "band": band.band.name.lower(),
            "tenants": band.num_tenants,
            "jain": round(band.jain, 4),
        }
        for model in models
        for band in model.service.shares()
        if band.num_tenants
    ]


def _of_minute(shares: Iterable[BandShares]) -> dict[tuple[Band, str], float]:
    return {
        (band.band, tenant.tenant_id): tenant.received for band in shares for tenant in band.tenants
    }


def _share(
    tenant: TenantState, band: Band, received: float | None, named: Mapping[str, Tenant]
) -> dict[str, Any]:
    return {
        "tenant": _name_of(tenant.tenant_id, named),
        "band": band.name.lower(),
        "weight": tenant.weight,
        # A right to a part has who has work: who is just done is not short of nothing.
        "entitled": round(tenant.entitled, 4) if tenant.queued or tenant.running else None,
        "received": None if received is None else round(min(1.0, received), 4),
        "queued": tenant.queued,
        "running": tenant.running,
    }


def _bands(states: Sequence[SchedulerState]) -> list[dict[str, Any]]:
    """Sum bands over models, the most urgent first."""
    bands: dict[int, dict[str, Any]] = {}
    for band in (band for state in states for band in state.bands):
        sums = {"queued": band.queued, "queued_tokens": band.queued_tokens, "running": band.running}
        shown = bands.setdefault(
            int(band.band), {"band": band.band.name.lower(), **dict.fromkeys(sums, 0)}
        )
        for name, number in sums.items():
            shown[name] += number
    return [bands[number] for number in sorted(bands)]


def _shown_ids(states: Sequence[SchedulerState], recent: Mapping[UUID | None, Recent]) -> set[str]:
    """Return whom a view may show."""
    ids = {tenant.tenant_id for state in states for band in state.bands for tenant in band.tenants}
    return ids | {str(tenant_id) for tenant_id, _ in _slowest_of(recent) if tenant_id is not None}


def _slowest_of(recent: Mapping[UUID | None, Recent]) -> list[tuple[UUID | None, Recent]]:
    drawn = [(tenant_id, one) for tenant_id, one in recent.items() if one.num_drawn]
    return nlargest(MAX_SLOWEST, drawn, key=lambda found: found[1].mean_ttft_s or 0.0)


def _slowest(
    recent: Mapping[UUID | None, Recent], named: Mapping[str, Tenant]
) -> list[dict[str, Any]]:
    return [
        {
            "tenant": "(others)" if tenant_id is None else _name_of(str(tenant_id), named),
            **_shown(one),
        }
        for tenant_id, one in _slowest_of(recent)
    ]


def _shown(recent: Recent) -> dict[str, Any]:
    mean_s, num_promised = recent.mean_ttft_s, recent.num_promised
    return {
        "requests": recent.num_ended,
        "failed": recent.num_failed,
        "output_tokens": recent.output_tokens,
        "mean_ttft_s": None if mean_s is None else round(mean_s, 4),
        "worst_ttft_s": round(recent.worst_ttft_s, 4) if recent.num_drawn else None,
        "promised": num_promised,
        "attained": round(1 - recent.num_missed / num_promised, 4) if num_promised else None,
    }


def _name_of(tenant_id: str, named: Mapping[str, Tenant]) -> str:
    tenant = named.get(tenant_id)
    return tenant_id if tenant is None else tenant.name
