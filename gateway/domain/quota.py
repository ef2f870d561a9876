"""What may be used: limits of a scope, and the windows that they count in.

Four scopes hold limits: the platform, an organisation, a tenant and a key; a request must fit all
of them. A plan is a fifth holder that no request meets itself: its tenants inherit from it what
they do not set. Over what a scope has set lies its override, for a while.

Rates (`rpm`, `input_tpm`, `output_tpm`) refill continuously. `concurrency` and `queued_tokens`
count what is there now. `daily_tokens`, `monthly_tokens` and the budget count what a window has
seen.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum, StrEnum, auto
from uuid import UUID

from gateway.domain.window import MONTH, Window

# Amounts are counted in doubles inside Redis: above this they are no longer exact.
MAX_AMOUNT = 9_000_000_000_000_000


class ScopeKind(StrEnum):
    """Name who can hold limits; the narrowest first."""

    KEY = "key"
    TENANT = "tenant"
    ORGANISATION = "organisation"
    PLATFORM = "platform"
    PLAN = "plan"


class Kind(Enum):
    """Say how a limit counts: what refills, what is there now, what a window has seen."""

    RATE = auto()
    COUNT = auto()
    WINDOW = auto()


class Unit(Enum):
    """Say what an amount is in."""

    REQUESTS = auto()
    TOKENS = auto()
    NANO_USD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """Say of a limit all that its readers need: counters, refusals, the command line, the tables.

    `counts`: which of `gateway.domain.limits.Amounts`; `counter`: what its counter is called, which
    limits that count the same over other windows share; `text`: in a refusal; `window`: None for a
    budget, which has a setting for it; `flag`: how people spell it, where not by its name.
    """

    kind: Kind
    unit: Unit
    counts: str
    counter: str
    text: str
    help: str
    window: str | None = None
    flag: str | None = None
    scopes: tuple[ScopeKind, ...] = tuple(ScopeKind)


class Metric(StrEnum):
    """Name what a limit counts: the table of limits, by their names in the API and the database.

    A further limit is a row here and its field in `Quota`, and a column of `quotas`; one of a new
    kind, or of a new amount, is Lua too. The order is that of the script's checks, and kept.
    """

    row: LimitRow

    def __new__(cls, name: str, row: LimitRow | None = None) -> Metric:
        assert row is not None, "a member names its row"
        metric = str.__new__(cls, name)
        metric._value_ = name
        metric.row = row
        return metric

    @property
    def flag(self) -> str:
        """Return what the option and the key of `tenants.toml` are called, with underscores."""
        return self.row.flag or self.value

    RPM = (
        "rpm",
        LimitRow(
            kind=Kind.RATE,
            unit=Unit.REQUESTS,
            counts="requests",
            counter="rpm",
            text="requests per minute (rpm)",
            help="Requests a minute.",
        ),
    )
    INPUT_TPM = (
        "input_tpm",
        LimitRow(
            kind=Kind.RATE,
            unit=Unit.TOKENS,
            counts="input_tokens",
            counter="in",
            text="input tokens per minute (input_tpm)",
            help="Prompt tokens a minute.",
        ),
    )
    OUTPUT_TPM = (
        "output_tpm",
        LimitRow(
            kind=Kind.RATE,
            unit=Unit.TOKENS,
            counts="output_tokens",
            counter="out",
            text="output tokens per minute (output_tpm)",
            help="Generated tokens a minute.",
        ),
    )
    CONCURRENCY = (
        "concurrency",
        LimitRow(
            kind=Kind.COUNT,
            unit=Unit.REQUESTS,
            counts="concurrency",
            counter="run",
            text="requests at a time (concurrency)",
            help="Requests at the same time.",
        ),
    )
    QUEUED_TOKENS = (
        "queued_tokens",
        LimitRow(
            kind=Kind.COUNT,
            unit=Unit.TOKENS,
            counts="queued_tokens",
            counter="queue",
            text="tokens of waiting prompts (queued_tokens)",
            help="Tokens that may wait at the same time.",
        ),
    )
    DAILY_TOKENS = (
        "daily_tokens",
        LimitRow(
            kind=Kind.WINDOW,
            unit=Unit.TOKENS,
            counts="tokens",
            counter="tokens",
            text="tokens per day (daily_tokens)",
            help="Tokens a day, in UTC.",
            window="day",
        ),
    )
    MONTHLY_TOKENS = (
        "monthly_tokens",
        LimitRow(
            kind=Kind.WINDOW,
            unit=Unit.TOKENS,
            counts="tokens",
            counter="tokens",
            text="tokens per month (monthly_tokens)",
            help="Tokens a month, in UTC.",
            window="month",
        ),
    )
    BUDGET = (
        "budget_nano_usd",
        LimitRow(
            kind=Kind.WINDOW,
            unit=Unit.NANO_USD,
            counts="nano_usd",
            counter="usd",
            flag="budget_usd",
            text="budget",
            help="US dollars a window, as 25 or 0.15.",
        ),
    )


PLATFORM_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Scope:
    """Name one holder of limits."""

    kind: ScopeKind
    id: UUID

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.id}"


PLATFORM = Scope(ScopeKind.PLATFORM, PLATFORM_ID)


_FIXED = {metric: Window(metric.row.window) for metric in Metric if metric.row.window is not None}


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
        assert metric.row.kind is Kind.WINDOW, "the others have none"
        return _FIXED.get(metric) or self.budget_window or MONTH

    @property
    def spelled(self) -> Quota:
        """Return this with what its budget is where nothing says: hard, over a month."""
        if self.budget_nano_usd is None:
            return self
        is_hard = self.budget_hard is not False
        return replace(self, budget_window=self.window(Metric.BUDGET), budget_hard=is_hard)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is limited."""
        return all(self.limit(metric) is None for metric in Metric)


assert {metric.value for metric in Metric} <= {field.name for field in fields(Quota)}


@dataclass(frozen=True, slots=True)
class ScopeQuota:
    """Pair a scope with the limits that hold for it now.

    `changed_us` is when they were changed last, by the database's clock, in us since 1970: what a
    window had counted before that may lack requests that ran without its limit.
    """

    scope: Scope
    quota: Quota
    changed_us: int = 0


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
