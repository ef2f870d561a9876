"""Whose batch is next: tenants share by tokens served over weight, and orgs share likewise.

Items start, in virtual time, where their tenant's last one ended or where the one begun last did,
whichever is later. So who comes with a million items delays another's by what runs, not by what
waits, and nobody saves time up by having no batch. An item is charged what such have cost its
tenant so far, and what it did cost in the end is set right then.

Source: start-time fair queueing, Goyal et al., SIGCOMM 1996; in two levels, as the scheduler has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Final
from uuid import UUID

from gateway.domain import Principal

# What an item costs of which nothing is known, in tokens; and how fast that is learned.
_FIRST_COST: Final = 256.0
_NEWEST: Final = 0.2
# Bytes of a request over what is charged for them at least: one that is refused has a cost too.
_BYTES_A_TOKEN: Final = 4
_LEAST_COST: Final = 16


def item_cost(num_tokens: int, size_bytes: int) -> float:
    """Say what an item has cost, in tokens: what it took, or reading it where that is more."""
    return max(num_tokens, size_bytes // _BYTES_A_TOKEN, _LEAST_COST)


@dataclass(slots=True)
class _Account:
    """Stand in a queue: at `tag`, in its virtual time, the next thing starts."""

    weight: float = 1.0
    tag: float = 0.0


@dataclass(slots=True)
class _Level:
    """Order accounts; `now` is the start of what began last."""

    now: float = 0.0
    accounts: dict[UUID, _Account] = field(default_factory=dict)

    def tag_of(self, name: UUID) -> float:
        """Return where one stands; what is before `now` starts now."""
        account = self.accounts.get(name)
        return self.now if account is None else account.tag

    def begin(self, name: UUID, weight: float, cost: float) -> None:
        account = self.accounts.setdefault(name, _Account())
        account.weight = weight
        self.now = max(self.now, account.tag)
        account.tag = self.now + cost / weight

    def correct(self, name: UUID, cost: float) -> None:
        account = self.accounts.get(name)
        if account is not None:
            account.tag += cost / account.weight

    def forget(self) -> None:
        """Drop whoever starts now in any case."""
        self.accounts = {name: one for name, one in self.accounts.items() if one.tag > self.now}


class Turns:
    """Share places between tenants."""

    def __init__(self) -> None:
        self._top = _Level()
        self._orgs: dict[UUID, _Level] = {}
        self._costs: dict[UUID, float] = {}

    def take(self, waiting: Mapping[UUID, Principal], num_places: int) -> Counter[UUID]:
        """Give out places to the tenants that wait, each by a key of it; what begins is charged."""
        places: Counter[UUID] = Counter()
        members: dict[UUID, list[tuple[float, UUID]]] = {}
        for who in waiting.values():
            inner = self._orgs[who.org_id].tag_of(who.tenant_id) if who.org_id in self._orgs else 0
            members.setdefault(who.org_id or who.tenant_id, []).append((inner, who.tenant_id))
        for tenants in members.values():
            heapify(tenants)
        queue = [(self._top.tag_of(name), name) for name in members]
        heapify(queue)
        for _ in range(num_places if queue else 0):
            _, name = queue[0]
            _, tenant_id = members[name][0]
            places[tenant_id] += 1
            who = waiting[tenant_id]
            self._begin(who, self.expected(tenant_id))
            if who.org_id is not None:
                tag = self._orgs[who.org_id].tag_of(tenant_id)
                heapreplace(members[name], (tag, tenant_id))
            heapreplace(queue, (self._top.tag_of(name), name))
        return places

    def expected(self, tenant_id: UUID) -> float:
        """Say what the next item of a tenant is charged as it begins."""
        return self._costs.get(tenant_id, _FIRST_COST)

    def correct(self, who: Principal, cost: float) -> None:
        """Charge a tenant more or, below 0, less."""
        self._top.correct(who.org_id or who.tenant_id, cost)
        if who.org_id is not None and who.org_id in self._orgs:
            self._orgs[who.org_id].correct(who.tenant_id, cost)

    def learn(self, tenant_id: UUID, cost: float) -> None:
        """Learn what an item of a tenant has cost."""
        known = self._costs.get(tenant_id, cost)
        self._costs[tenant_id] = known + _NEWEST * (cost - known)

    def forget(self, present: Mapping[UUID, Principal]) -> None:
        """Drop what is known of tenants that have nothing waiting and are owed nothing."""
        self._top.forget()
        orgs = {who.org_id for who in present.values()}
        self._orgs = {name: level for name, level in self._orgs.items() if name in orgs}
        for level in self._orgs.values():
            level.forget()
        self._costs = {name: cost for name, cost in self._costs.items() if name in present}

    def _begin(self, who: Principal, cost: float) -> None:
        if who.org_id is None:
            self._top.begin(who.tenant_id, who.weight, cost)
            return
        self._top.begin(who.org_id, who.org_weight, cost)
        self._orgs.setdefault(who.org_id, _Level()).begin(who.tenant_id, who.weight, cost)
