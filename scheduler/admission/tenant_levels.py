"""Who of a band's tenants is served how much before a level is reached, for thousands at once.

The tenants of a band whose policy keeps accounts are rows of arrays: their counters, weights, what
they have queued, what they send. Each is served until its counter has come to a level, or until it
has nothing left; the sum of that takes a few operations, however many there are. Organisations are
rows among them, and the tenants of an organisation have arrays of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scheduler.order import Node

# Over how long it is averaged how much comes in.
_INFLOW_S = 10.0
_LEAST_AGE_S = 1.0
_MIN_TENANTS = 16


class TenantLevels:
    """Hold the tenants of a band or of an organisation whose policy is fair, as arrays.

    A row is read again from its node when something of it has changed and somebody asks. Rows of
    tenants that have nothing and sent nothing lately are given to others.
    """

    def __init__(self, now: float) -> None:
        self.stale: set[Node] = set()
        self._rows: dict[Node, int] = {}
        # Whose rows they are; None where the tree has forgotten who, but what it sent counts yet.
        self._tenants: list[Node | None] = []
        self._began_s = self._first_s = now
        self._floor = self._live_weight = 0.0
        self._has_moved = False
        self._grow(_MIN_TENANTS)

    def add_inflow(self, tenant: Node, num_tokens: int, now: float) -> None:
        self.stale.add(tenant)
        row = self._rows.get(tenant)
        if row is None:
            row = self._new_row(tenant, now)
        # Counted in tokens as they will have faded: none needs to be touched as time passes.
        if now - self._began_s > 50.0 * _INFLOW_S:
            self._inflow *= math.exp((self._began_s - now) / _INFLOW_S)
            self._began_s = now
        self._inflow[row] += num_tokens * math.exp((now - self._began_s) / _INFLOW_S)

    def swept(self, tenant: Node) -> None:
        """Read an idle tenant for the last time; what it sent lately counts for longer."""
        self.stale.discard(tenant)
        row = self._rows.pop(tenant, None)
        if row is not None:
            self._tenants[row] = None
            self._counters_read[row], self._weights[row] = tenant.counter, tenant.weight
            self._queued[row] = self._rows_per_weight[row] = self._live_weights[row] = 0.0
            self._waits[row] = False
            self._has_moved = True

    def weight_beside(self, own: Node | None) -> float:
        """Sum the weights of the other tenants that wait or run."""
        row = None if own is None else self._rows.get(own)
        return self._live_weight - (0.0 if row is None else float(self._live_weights[row]))

    def served_meanwhile(
        self,
        own: Node | None,
        own_cost: float,
        now: float,
        horizon_s: float,
        *,
        draws_cost_per_s: float,
        input_price: float,
        is_level: bool,
    ) -> float:
        """Count the tokens of other tenants that go before what costs `own_cost` over its weight.

        Each is served until its counter has come to the tenant's own, and all counters rise by
        what running requests draw meanwhile. With `is_level`, the tenant is level with the least.
        """
        n = len(self._tenants)
        row = None if own is None else self._rows.get(own)
        if not n or (row is not None and n == 1) or input_price <= 0.0:
            return 0.0
        level = own_cost + self._floor
        if own is not None and not is_level:
            level = own_cost + max(own.counter, self._floor)
        drawn_cost = draws_cost_per_s * horizon_s
        if row is not None:
            level += drawn_cost * float(self._rows_per_weight[row])
        due, sent = self._scratch[0][:n], self._scratch[1][:n]
        np.multiply(self._rows_per_weight[:n], drawn_cost, out=due)
        np.subtract(level, due, out=due)
        np.subtract(due, self._counters[:n], out=due)
        np.maximum(due, 0.0, out=due)
        np.multiply(due, self._weights[:n], out=due)
        if input_price != 1.0:
            np.divide(due, input_price, out=due)
        fade = math.exp(min(0.0, self._began_s - now) / _INFLOW_S)
        np.multiply(self._inflow[:n], fade * horizon_s / _span_s(now - self._first_s), out=sent)
        np.add(sent, self._queued[:n], out=sent)
        np.minimum(due, sent, out=due)
        total = float(due.sum())
        return total if row is None else total - float(due[row])

    def read_counters(self, nodes: Iterable[Node]) -> None:
        """Look at the counters of nodes that were charged."""
        rows = self._rows
        known = [node for node in nodes if node in rows]
        if known:
            self._counters_read[[rows[node] for node in known]] = [node.counter for node in known]
            self._has_moved = True

    def read(self) -> None:
        """Look at the nodes that have changed; idle ones would begin level with the others."""
        nodes = [node for node in self.stale if node in self._rows]
        self.stale.clear()
        n = len(self._tenants)
        if nodes:
            self.read_counters(nodes)
            rows = [self._rows[node] for node in nodes]
            self._weights[rows] = weights = np.array([node.weight for node in nodes])
            self._queued[rows] = [node.waiting_tokens for node in nodes]
            running = np.array([node.num_live - node.num_waiting for node in nodes])
            self._rows_per_weight[rows] = running / weights
            self._live_weights[rows] = weights * np.array([node.num_live > 0 for node in nodes])
            self._waits[rows] = [node.num_waiting > 0 for node in nodes]
        if self._has_moved:
            self._live_weight = float(self._live_weights[:n].sum())
            waiting = self._counters_read[:n][self._waits[:n]]
            self._floor = float(waiting.min()) if len(waiting) else 0.0
            np.maximum(self._counters_read[:n], self._floor, out=self._counters[:n])
            self._has_moved = False

    def _new_row(self, tenant: Node, now: float) -> int:
        if len(self._tenants) == len(self._queued):
            self._drop_idle(now)
            if 2 * len(self._tenants) > len(self._queued):
                self._grow(2 * len(self._queued))
        row = self._rows[tenant] = len(self._tenants)
        self._tenants.append(tenant)
        for column in self._columns:
            column[row] = 0
        return row

    def _drop_idle(self, now: float) -> None:
        fade = math.exp((self._began_s - now) / _INFLOW_S)
        sent_lately = (self._inflow[: len(self._tenants)] * fade >= 1.0).tolist()
        rows = [
            row
            for row, (node, counts) in enumerate(zip(self._tenants, sent_lately, strict=True))
            if counts or (node is not None and node.num_live)
        ]
        for column in self._columns:
            column[: len(rows)] = column[rows]
        self._tenants = [self._tenants[row] for row in rows]
        self._rows = {node: row for row, node in enumerate(self._tenants) if node is not None}

    def _grow(self, size: int) -> None:
        old = self._columns if self._tenants else ()
        self._counters_read, self._counters, self._weights, self._queued = np.zeros((4, size))
        self._inflow, self._rows_per_weight, self._live_weights = np.zeros((3, size))
        self._waits = np.zeros(size, dtype=bool)
        self._scratch = np.zeros((2, size))
        for column, before in zip(self._columns, old, strict=False):
            column[: len(before)] = before

    @property
    def _columns(self) -> tuple[NDArray[np.float64] | NDArray[np.bool_], ...]:
        return (
            self._counters_read,
            self._counters,
            self._weights,
            self._queued,
            self._inflow,
            self._rows_per_weight,
            self._live_weights,
            self._waits,
        )


class Inflow:
    """Average how many tokens come in a second."""

    __slots__ = ("_at_s", "_first_s", "_tokens")

    def __init__(self, now: float) -> None:
        self._at_s = self._first_s = now
        self._tokens = 0.0

    def add(self, num_tokens: int, now: float) -> None:
        self._tokens = self._tokens_at(now) + num_tokens
        self._at_s = max(now, self._at_s)

    def tokens_per_s(self, now: float) -> float:
        return self._tokens_at(now) / _span_s(now - self._first_s)

    def _tokens_at(self, now: float) -> float:
        return self._tokens * math.exp(min(0.0, self._at_s - now) / _INFLOW_S)


def _span_s(age_s: float) -> float:
    """Say how long it takes to send what is remembered, of what began `age_s` ago."""
    return _INFLOW_S * (1.0 - math.exp(-max(age_s, _LEAST_AGE_S) / _INFLOW_S))
