"""What may be used: limits of a scope, and the windows that they count in.

Four scopes hold limits: the platform, an organisation, a tenant and a key; a request must fit all
of them. A plan is a fifth holder that no request meets itself: its tenants inherit from it what
they do not set. Over what a scope has set lies its override, for a while.

Rates (`rpm`, `input_tpm`, `output_tpm`) refill continuously. `concurrency` and `queued_tokens`
count what is there now. `daily_tokens`, `monthly_tokens` and the budget count what a window has
seen. A window is calendar time in UTC or the last so many hours; a new window has a new name, so
nothing is ever reset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

# Amounts are counted in doubles inside Redis: above this they are no longer exact.
MAX_AMOUNT = 9_000_000_000_000_000
# A rolling window is counted in at most this many slots, so it forgets in steps of a thirtieth.
MAX_SLOTS = 30

_ROLLING = re.compile(r"(?P<number>[1-9]\d{0,4})(?P<unit>[hd])", re.ASCII)
_MAX_ROLLING_H = 366 * 24


class Metric(StrEnum):
    """Name what a limit counts."""

    RPM = "rpm"
    INPUT_TPM = "input_tpm"
    OUTPUT_TPM = "output_tpm"
    CONCURRENCY = "concurrency"
    QUEUED_TOKENS = "queued_tokens"
    DAILY_TOKENS = "daily_tokens"
    MONTHLY_TOKENS = "monthly_tokens"
    BUDGET = "budget_nano_usd"


RATES = (Metric.RPM, Metric.INPUT_TPM, Metric.OUTPUT_TPM)
WINDOWED = (Metric.DAILY_TOKENS, Metric.MONTHLY_TOKENS, Metric.BUDGET)


class ScopeKind(StrEnum):
    """Name who can hold limits; the narrowest first."""

    KEY = "key"
    TENANT = "tenant"
    ORGANISATION = "organisation"
    PLATFORM = "platform"
    PLAN = "plan"


PLATFORM_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Scope:
    """Name one holder of limits."""

    kind: ScopeKind
    id: UUID

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.id}"


PLATFORM = Scope(ScopeKind.PLATFORM, PLATFORM_ID)


@dataclass(frozen=True, slots=True)
class Slot:
    """Name the part of a window that a moment falls in, and the oldest part that still counts.

    All in seconds since 1970; `start_s <= moment < end_s`. In calendar windows the two starts
    are the same.
    """

    start_s: int
    end_s: int
    oldest_s: int


@dataclass(frozen=True, slots=True)
class Window:
    """Say over what time an amount is counted: `day`, `week` (from Monday), `month`, or the last
    `24h`, `30d`.
    """

    text: str

    def __post_init__(self) -> None:
        if self.text not in ("day", "week", "month"):
            found = _ROLLING.fullmatch(self.text)
            hours = int(found["number"]) * (24 if found["unit"] == "d" else 1) if found else 0
            if not 1 <= hours <= _MAX_ROLLING_H:
                raise ValueError("a window is day, week, month, or as 24h or 30d, at most a year")

    @property
    def rolling_h(self) -> int | None:
        """Return the hours of a rolling window; None for one of the calendar."""
        found = _ROLLING.fullmatch(self.text)
        return int(found["number"]) * (24 if found["unit"] == "d" else 1) if found else None

    def slot(self, now_s: float) -> Slot:
        """Return the slot that a moment falls in."""
        if self.rolling_h is not None:
            slot_h = -(-self.rolling_h // MAX_SLOTS)
            num_slots = -(-self.rolling_h // slot_h)
            width_s = slot_h * 3600
            start_s = int(now_s // width_s) * width_s
            return Slot(start_s, start_s + width_s, start_s - num_slots * width_s)
        now = datetime.fromtimestamp(now_s, UTC)
        start = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if self.text == "week":
            start -= timedelta(days=start.weekday())
            end = start + timedelta(days=7)
        elif self.text == "month":
            start = start.replace(day=1)
            end = (start + timedelta(days=32)).replace(day=1)
        else:
            end = start + timedelta(days=1)
        return Slot(int(start.timestamp()), int(end.timestamp()), int(start.timestamp()))


DAY, MONTH = Window("day"), Window("month")


@dataclass(frozen=True, slots=True)
class Quota:
    """Hold the limits of one scope; None is no limit, 0 lets nothing through.

    Rates are per minute. The budget is in nano-USD over `budget_window`; one that is not
    `budget_hard` refuses nothing and only says when it is passed.
    """

    rpm: int | None = None
    input_tpm: int | None = None
    output_tpm: int | None = None
    concurrency: int | None = None
    queued_tokens: int | None = None
    daily_tokens: int | None = None
    monthly_tokens: int | None = None
    budget_nano_usd: int | None = None
    budget_window: Window | None = None
    budget_hard: bool | None = None

    def over(self, below: Quota) -> Quota:
        """Return this with what it leaves open taken from `below`."""
        taken = {
            field.name: getattr(below, field.name)
            for field in fields(self)
            if getattr(self, field.name) is None
        }
        return replace(self, **taken)

    def limit(self, metric: Metric) -> int | None:
        value: int | None = getattr(self, metric.value)
        return value

    def window(self, metric: Metric) -> Window:
        """Return what a windowed metric counts over."""
        if metric is Metric.DAILY_TOKENS:
            return DAY
        if metric is Metric.MONTHLY_TOKENS:
            return MONTH
        assert metric is Metric.BUDGET, "only these have windows"
        return self.budget_window or MONTH

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is limited."""
        return all(self.limit(metric) is None for metric in Metric)


@dataclass(frozen=True, slots=True)
class ScopeQuota:
    """Pair a scope with the limits that hold for it now."""

    scope: Scope
    quota: Quota


@dataclass(frozen=True, slots=True)
class Stand:
    """Say how a limit stands: its amount, what is left of it, and when it is whole again."""

    amount: int
    left: int
    whole_in_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Say how a request's tightest limits stand, on requests and on tokens; None: no limit."""

    requests: Stand | None = None
    tokens: Stand | None = None
