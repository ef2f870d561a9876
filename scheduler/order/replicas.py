"""Shares over several replicas: what tenants have on others makes them weigh less here.

Each replica serves by weights what comes to it, so a tenant that is sent to two of them would have
two shares. Replicas therefore tell each other what organisations and tenants are served a second
(`Rates`; who carries that, and how old it may be, is not for here to know), and each divides what
it serves so that the sums over all replicas come as near to the weights as it can bring them: the
level L for which the parts max(0, weight · L - elsewhere) fill what is served here. Who wants no
more here than it has is left with that. From the parts follow factors of weights, so whatever goes
by weights follows: turns, rows, slots, KV blocks, admission.

- A factor is `LEAST` at least: requests that a balancer sent here are served, however much their
  tenant has elsewhere.
- All replicas answer the same imbalance at once. What each takes on is its part of it by their
  number, and half of that as what it knows is some seconds old; otherwise it would swing.
- Who weighs more or less stays as far ahead of its siblings, in service, as it was: what was
  charged at a twentieth of a weight would else be twenty debts once that is whole again.
- Rates are parts of the time that the engine computes, in seconds a second: what a charge is in is
  learned by each replica for itself, and two that serve the same differ in it by a third. A second
  of a slow machine counts as one of a fast one.

Source: water filling, as in `scheduler.step.water_level`; a damped best response of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from heapq import nlargest
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.order.fair_tree import FairTree
from scheduler.order.tree_node import Level, Node
from scheduler.request import Band, Request

LEAST: Final = 0.05
# Over how long rates are averaged, and for how long who wanted more is taken to want it still.
_MEAN_S: Final = 3.0
_WANTED_S: Final = 5.0
# Told, and leaned, are those with the most; what is left out of thousands is little for each.
MAX_TOLD: Final = 256
# Of what is wanted, divided by the number of replicas.
_GAIN: Final = 0.5
# A change of a factor, and its distance from 1.
_LEAST_CHANGE: Final = 0.002
# At once, while everybody waits: those that change most; others follow in a second.
_MAX_LEANED: Final = 64
_Column = NDArray[np.float64]


class Account(NamedTuple):
    """Name who is served: a tenant, or with an empty `tenant_id` all of an organisation."""

    band: Band
    organisation_id: str
    tenant_id: str


# In seconds of an engine a second.
Rates = Mapping[Account, float]


class Lean(NamedTuple):
    """Say by what the weight of an account is multiplied from now on."""

    account: Account
    node: Node
    ratio: float


class Replicas:
    """Measure what is served here, and lean weights by what is served elsewhere."""

    def __init__(self) -> None:
        self._tree: FairTree | None = None
        self._served: _Column = np.zeros(0)
        self._busy_s = self._at_s = 0.0
        self._rates: dict[Account, float] = {}
        self._wanted_s: dict[Account, float] = {}
        self._factors: dict[Account, float] = {}

    def rates(self, tree: FairTree, busy_s: float, now: float) -> dict[Account, float]:
        """Say what is served here a second, of those with the most; to be asked now and then.

        `busy_s` is for how long the engine has computed in all.
        """
        took_s = now - self._at_s
        served = tree.columns.served.copy()
        if tree is self._tree and took_s > 0.0:
            busy = min(1.0, (busy_s - self._busy_s) / took_s)
            self._note(tree, served, busy, took_s, now)
        self._tree, self._served, self._at_s = tree, served, now
        self._busy_s = busy_s
        return dict(self._rates)

    def lean(self, tree: FairTree, elsewhere: Rates, num_replicas: int, now: float) -> list[Lean]:
        """Find the weights for what the other replicas serve, `num_replicas` with this one."""
        is_alone = num_replicas == 1
        # Nobody else corrects anything then, and nobody asks again.
        gain = 1.0 if is_alone else _GAIN / num_replicas
        wanted = self._wanted(tree, elsewhere, now)
        changes = []
        for account in self._factors.keys() | wanted.keys():
            old = self._factors.get(account, 1.0)
            # Who is no longer served here begins anew.
            new = old ** (1.0 - gain) * wanted[account] ** gain if account in wanted else 1.0
            if abs(new - 1.0) < _LEAST_CHANGE:
                new = 1.0
            if abs(math.log(new / old)) >= _LEAST_CHANGE:
                changes.append((account, old, new))
        if len(changes) > _MAX_LEANED and not is_alone:
            changes.sort(key=lambda change: -abs(math.log(change[2] / change[1])))
        leans, factors = [], dict(self._factors)
        for account, old, new in changes if is_alone else changes[:_MAX_LEANED]:
            factors[account] = new
            node = _find(tree, account)
            if node is not None:
                leans.append(Lean(account, node, new / old))
        self._factors = {account: factor for account, factor in factors.items() if factor != 1.0}
        return leans

    def leaned(self, request: Request) -> Request:
        """Return a request with the weights that it has here."""
        if not self._factors:
            return request
        own, above = self._factors_in(request.band, request)
        if own == above == 1.0:
            return request
        return replace(
            request,
            weight=request.weight * own,
            organisation_weight=request.organisation_weight * above,
        )

    def moved(self, request: Request, band: Band, tenant: Node) -> Request:
        """Return a request with the weights that it has in another band, as they are set by now.

        `tenant` is whom it is of in the band where it is.
        """
        own, above = self._factors_in(request.band, request)
        own_there, above_there = self._factors_in(band, request)
        organisation_weight = request.organisation_weight
        if request.organisation_id:
            organisation_weight = tenant.above.weight / above * above_there
        return replace(
            request,
            weight=tenant.weight / own * own_there,
            organisation_weight=organisation_weight,
        )

    def _factors_in(self, band: Band, request: Request) -> tuple[float, float]:
        """Return by what the weights of a request's tenant and organisation are multiplied."""
        organisation_id = request.organisation_id
        own = self._factors.get(Account(band, organisation_id, request.tenant_id), 1.0)
        if not organisation_id:
            return own, 1.0
        return own, self._factors.get(Account(band, organisation_id, ""), 1.0)

    def forget(self, name: str) -> None:
        """Begin anew with a tenant or an organisation, whose weight was set."""
        self._factors = {
            account: factor
            for account, factor in self._factors.items()
            if name != (account.tenant_id or account.organisation_id)
        }

    def _note(
        self, tree: FairTree, served: _Column, busy: float, took_s: float, now: float
    ) -> None:
        """Average what was served since the last time, over about `_MEAN_S`."""
        kept = math.exp(-took_s / _MEAN_S)
        columns = tree.columns
        since = served.copy()
        since[: len(self._served)] -= self._served
        # Refunds, and entries that were given to newcomers, are not told.
        np.maximum(since, 0.0, out=since)
        is_tenant = columns.levels == Level.TENANT
        in_all = float(since[is_tenant].sum())
        is_one = is_tenant | (columns.levels == Level.ORGANISATION)
        # Who waits and is served nothing is to be known as well.
        waits = np.isfinite(columns.waiting_since_s) | (columns.waiting > 0.0)
        entries = np.flatnonzero(is_one & ((since > 0.0) | waits))
        if len(entries) > MAX_TOLD:
            entries = entries[np.argpartition(since[entries], -MAX_TOLD)[-MAX_TOLD:]]
        rates = {account: rate * kept for account, rate in self._rates.items()}
        least = 1e-3 * max(rates.values(), default=0.0)
        rates = {account: rate for account, rate in rates.items() if rate > least}
        for entry in entries.tolist():
            node = tree.find_entry(entry)
            if node is None:
                continue
            account = account_of(node)
            rate = busy * float(since[entry]) / in_all if in_all else 0.0
            rates[account] = rates.get(account, 0.0) + (1.0 - kept) * rate
            member = node if node.level is Level.ORGANISATION else node.member
            if node.num_waiting or columns.was_held[member.entry]:
                self._wanted_s[account] = now
        if len(rates) > MAX_TOLD:
            # Of thousands others have the most each time, and are remembered for a while. Who
            # weighs less has less, and would weigh what it did as soon as that is forgotten.
            most = nlargest(MAX_TOLD, rates, key=lambda a: rates[a] / self._factors.get(a, 1.0))
            rates = {account: rates[account] for account in most}
        self._rates = rates
        self._wanted_s = {a: at_s for a, at_s in self._wanted_s.items() if a in rates}

    def _wanted(self, tree: FairTree, elsewhere: Rates, now: float) -> dict[Account, float]:
        """Say what factors would do, of all that are served here."""
        groups: dict[tuple[Band, str], list[Account]] = {}
        for account in self._rates:
            above = account.organisation_id if account.tenant_id else ""
            groups.setdefault((account.band, above), []).append(account)
        wanted = dict.fromkeys(self._rates, 1.0)
        for accounts in groups.values():
            theirs = np.array([elsewhere.get(account, 0.0) for account in accounts])
            wants = np.array([self._wants_more(account, now) for account in accounts])
            if theirs.any() and wants.sum() > 1:
                factors = self._of_group(tree, accounts, theirs, wants)
                wanted |= zip(accounts, factors.tolist(), strict=True)
        return wanted

    def _wants_more(self, account: Account, now: float) -> bool:
        return now - self._wanted_s.get(account, -math.inf) <= _WANTED_S

    def _of_group(
        self,
        tree: FairTree,
        accounts: list[Account],
        elsewhere: _Column,
        wants: NDArray[np.bool_],
    ) -> _Column:
        """Find the factors of those that share something; 1 for who wants no more."""
        nodes = (_find(tree, account) for account in accounts)
        own = [1.0 if node is None else node.weight for node in nodes]
        weights = np.array(own) / [self._factors.get(account, 1.0) for account in accounts]
        here = np.array([self._rates[account] for account in accounts])
        parts = fill(weights, elsewhere, np.where(wants, np.inf, here), float(here.sum()))
        mean = parts[wants].sum() / weights[wants].sum()
        if mean <= 0.0:
            return np.ones(len(accounts))
        factors: _Column = np.where(wants, np.maximum(parts / weights / mean, LEAST), 1.0)
        return factors


def fill(weights: _Column, elsewhere: _Column, most: _Column, total: float) -> _Column:
    """Divide `total` so that parts and what is had `elsewhere` are level, for weights; [n] each.

    Nobody has more than `most`, or less than nothing; less than all is divided where all have
    their most.
    """
    begins, ends = elsewhere / weights, (elsewhere + most) / weights
    is_bounded = np.isfinite(ends)
    levels = np.concatenate((begins, ends[is_bounded]))
    slopes = np.concatenate((weights, -weights[is_bounded]))
    order = np.argsort(levels, kind="stable")
    levels, slope = levels[order], slopes[order].cumsum()
    amounts = np.concatenate(((0.0,), (slope[:-1] * np.diff(levels)).cumsum()))
    at = int(np.searchsorted(amounts, total, side="right")) - 1
    level = levels[at]
    if slope[at] > 1e-12:
        level += (total - amounts[at]) / slope[at]
    parts: _Column = np.clip(weights * level - elsewhere, 0.0, most)
    return parts


def account_of(node: Node) -> Account:
    """Name the account of a tenant's or an organisation's node."""
    if node.level is Level.ORGANISATION:
        return Account(node.band, node.name, "")
    above = node.above
    return Account(node.band, above.name if above.level is Level.ORGANISATION else "", node.name)


def _find(tree: FairTree, account: Account) -> Node | None:
    return tree.find_account(account.band, account.organisation_id, account.tenant_id)
