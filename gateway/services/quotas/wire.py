"""The limits of a principal in the shape that the script reads, made once and kept.

A request brings seven amounts; each limit counts one of them. The script is told, for every
limit, which (`gateway/store/quota/`). A window's slot is named by the second that it starts
at, so what is compiled is good until the first of its slots ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from gateway.domain import Principal
from gateway.domain.quota import WINDOWED, Metric, ScopeQuota, Slot, Window

# The script counts microseconds from here, so that fractions of them are still exact.
BASE_S: Final = 1_735_689_600

_RATE, _COUNT, _WINDOW = 1, 2, 3
_MAX_COMPILED: Final = 20_000
_MINUTE_US: Final = 60_000_000

# metric → (kind, the name of its fields, which of the amounts it counts, from 1 as in Lua)
_SHAPES: Final[dict[Metric, tuple[int, str, int]]] = {
    Metric.RPM: (_RATE, "rpm", 1),
    Metric.INPUT_TPM: (_RATE, "in", 2),
    Metric.OUTPUT_TPM: (_RATE, "out", 3),
    Metric.CONCURRENCY: (_COUNT, "run", 4),
    Metric.QUEUED_TOKENS: (_COUNT, "queue", 5),
    Metric.DAILY_TOKENS: (_WINDOW, "tokens", 6),
    Metric.MONTHLY_TOKENS: (_WINDOW, "tokens", 6),
    Metric.BUDGET: (_WINDOW, "usd", 7),
}


class Amounts(NamedTuple):
    """Say how much of everything a request holds or has used; money in nano-USD."""

    rpm: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    concurrency: int = 0
    queued_tokens: int = 0
    tokens: int = 0
    nano_usd: int = 0


class Told(NamedTuple):
    """Say what a request has used so far: what is billed if nothing more is ever heard of it."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """Name one limit of a principal; `scope_at` and `entry_at` are where the script has it."""

    scope: ScopeQuota
    scope_name: str
    metric: Metric
    amount: int
    scope_at: int
    entry_at: int
    field: str
    is_hard: bool
    window: Window | None = None
    slot: Slot | None = None

    @property
    def counts_money(self) -> bool:
        """Tell whether the amount is nano-USD rather than tokens or requests."""
        return self.metric is Metric.BUDGET

    def slots(self) -> range:
        """Return where each slot of the window starts, the newest last."""
        assert self.slot is not None, "only windows have slots"
        width_s = self.slot.end_s - self.slot.start_s
        if self.slot.oldest_s == self.slot.start_s:
            width_s = 1
        return range(self.slot.oldest_s, self.slot.start_s + 1, width_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold a principal's limits, `packed` as the script reads them, until `until_s`."""

    packed: bytes
    limits: tuple[Limit, ...]
    until_s: float
    has_hard: bool
    has_queue: bool
    output_tpm: int | None
    _places: dict[tuple[int, int], Limit] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {(limit.scope_at, limit.entry_at): limit for limit in self.limits}
        object.__setattr__(self, "_places", places)

    def at(self, scope_at: int, entry_at: int) -> Limit:
        """Return the limit that the script calls by these numbers, from 1."""
        return self._places[scope_at, entry_at]


NO_LIMITS: Final = Limits(b"\x90", (), float("inf"), False, False, None)


class Compiler:
    """Compile what principals are limited to, and keep it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, tuple[tuple[ScopeQuota, ...], Limits]] = OrderedDict()
        self._asked: set[UUID] = set()

    def compile(self, principal: Principal, now_s: float) -> Limits:
        """Return the limits of a principal as they are named now."""
        if not principal.quotas:
            return NO_LIMITS
        self._asked.add(principal.key_id)
        kept = self._kept.get(principal.key_id)
        if kept is not None and now_s < kept[1].until_s and kept[0] == principal.quotas:
            return kept[1]
        compiled = compile_limits(principal.quotas, now_s)
        self._kept[principal.key_id] = (principal.quotas, compiled)
        self._kept.move_to_end(principal.key_id)
        if len(self._kept) > _MAX_COMPILED:
            self._kept.popitem(last=False)
        return compiled

    def take_asked(self) -> list[Limits]:
        """Return what was asked for since this was called before."""
        asked, self._asked = self._asked, set()
        return [self._kept[key][1] for key in asked if key in self._kept]


def compile_limits(
    quotas: tuple[ScopeQuota, ...], now_s: float, metrics: Sequence[Metric] = tuple(Metric)
) -> Limits:
    """Compile limits, or those on some metrics, for the windows that `now_s` falls in."""
    scopes: list[msgspec.Raw] = []
    limits: list[Limit] = []
    for scope in quotas:
        entries: list[list[Any]] = []
        for metric in metrics:
            amount = scope.quota.limit(metric)
            if amount is None:
                continue
            limit = _limit(scope, metric, amount, len(scopes) + 1, len(entries) + 1, now_s)
            limits.append(limit)
            entries.append(_entry(limit))
        if entries:
            scopes.append(_pack_scope([_key(scope), entries]))
    output_tpms = [limit.amount for limit in limits if limit.metric is Metric.OUTPUT_TPM]
    return Limits(
        msgspec.msgpack.encode(scopes),
        tuple(limits),
        min((limit.slot.end_s for limit in limits if limit.slot), default=float("inf")),
        any(limit.slot is not None and limit.is_hard for limit in limits),
        any(limit.metric is Metric.QUEUED_TOKENS for limit in limits),
        min(output_tpms, default=None),
    )


def _pack_scope(scope: Sequence[Any]) -> msgspec.Raw:
    """Pack a scope by itself, as most are shared and the script keeps what it has unpacked.

    It goes as a MessagePack string: what Redis has knows no binary type.
    """
    packed = msgspec.msgpack.encode(scope)
    return msgspec.Raw(b"\xdb" + len(packed).to_bytes(4, "big") + packed)


def _key(scope: ScopeQuota) -> str:
    return f"sluice:q:{scope.scope}"


def _limit(
    scope: ScopeQuota, metric: Metric, amount: int, scope_at: int, entry_at: int, now_s: float
) -> Limit:
    name = _SHAPES[metric][1]
    window, slot = None, None
    is_hard = True
    if metric in WINDOWED:
        window = scope.quota.window(metric)
        slot = window.slot(now_s)
        name = f"{name}.{window.text}"
        is_hard = metric is not Metric.BUDGET or scope.quota.budget_hard is not False
    return Limit(
        scope, _key(scope), metric, amount, scope_at, entry_at, name, is_hard, window, slot
    )


def _entry(limit: Limit) -> list[Any]:
    """Return a limit as the script reads it."""
    kind, _, index = _SHAPES[limit.metric]
    entry: list[Any] = [kind, index, limit.amount, limit.field]
    slot = limit.slot
    if slot is None:
        # A limit of 0 has no unit; it refuses before one is asked for.
        return [*entry, _MINUTE_US / max(limit.amount, 1)] if kind == _RATE else entry
    width_s = slot.end_s - slot.start_s
    return [*entry, int(limit.is_hard), slot.start_s, slot.end_s, slot.oldest_s, width_s]
