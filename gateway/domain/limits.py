"""The limits that one principal meets, made ready to be counted, and the amounts they count.

A request brings seven amounts; each limit counts one of them (`Metric.row`). A window's slot is
named by the second that it starts at, so limits are good until the first of their slots ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from gateway.domain.quota import Metric, Scope, Unit
from gateway.domain.window import Slot, Window

# Counters count microseconds from here, so that fractions of them are still exact in doubles.
BASE_S: Final = 1_735_689_600


class Amounts(NamedTuple):
    """Say how much of everything a request holds or has used; money in nano-USD."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    concurrency: int = 0
    queued_tokens: int = 0
    tokens: int = 0
    nano_usd: int = 0


# Where the amount stands that a metric counts.
AMOUNT_AT: Final = {metric: Amounts._fields.index(metric.row.counts) for metric in Metric}


class Told(NamedTuple):
    """Say what a request has used so far: what is billed if nothing more is ever heard of it.

    `rate_tokens` is what it counts for in rates of input, where cached tokens weigh less.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = 0
    rate_tokens: int = 0


class Sums(NamedTuple):
    """Say what the ledger has of a scope in a time."""

    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0

    def of(self, metric: Metric) -> int:
        """Return the sum that a windowed metric is held against."""
        return self[_SUM_AT[metric.row.unit]]


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """Say what the ledger had at one moment: sums, which of them are of lost requests, and rows.

    `used` and `vouched` are in the order in which scopes were asked about; `booked` has those of
    the requests asked about that have a row.
    """

    used: Sequence[Sums]
    vouched: Sequence[Mapping[UUID, Sums]]
    booked: Mapping[UUID, Told]


_SUM_AT: Final = {Unit.REQUESTS: 0, Unit.TOKENS: 1, Unit.NANO_USD: 2}


@dataclass(frozen=True, slots=True)
class Limit:
    """Name one limit of a principal; those that count windows have one, and its present slot.

    `changed_us` is when the limits of its scope were changed last (`ScopeQuota`).
    """

    scope: Scope
    metric: Metric
    amount: int
    is_hard: bool = True
    window: Window | None = None
    slot: Slot | None = None
    changed_us: int = 0

    def slots(self) -> range:
        """Return where each slot of the window starts, the newest last."""
        assert self.slot is not None, "only windows have slots"
        width_s = self.slot.end_s - self.slot.start_s
        if self.slot.oldest_s == self.slot.start_s:
            width_s = 1
        return range(self.slot.oldest_s, self.slot.start_s + 1, width_s)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Limits:
    """Hold a principal's limits until `until_s`, those of a scope together.

    `changes` say when those of each scope were changed last, also where none are left: so the
    counters know who has not heard of a limit from who knows that it is gone.

    They are compared by identity, as the store keeps beside each how it spells it.
    """

    limits: tuple[Limit, ...]
    until_s: float
    has_hard: bool
    has_queue: bool
    output_tpm: int | None
    changes: tuple[tuple[Scope, int], ...] = ()


NO_LIMITS: Final = Limits((), float("inf"), False, False, None)


@dataclass(frozen=True, slots=True)
class Denied:
    """Say which limit refused.

    `wait_s` is when it would fit; 0 where it depends on others' ends; None where it never fits.
    With `is_exhausted` nothing is left before the window ends.
    """

    limit: Limit
    wait_s: float | None
    left: int
    used: int
    is_exhausted: bool = False
