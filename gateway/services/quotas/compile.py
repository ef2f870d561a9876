"""The limits of a principal as they are named now, made once and kept.

How they are spelled for the counters the store knows; see `gateway.domain.limits`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from gateway.domain import Principal
from gateway.domain.limits import NO_LIMITS, Limit, Limits
from gateway.domain.quota import Kind, Metric, ScopeQuota

_MAX_COMPILED: Final = 20_000
# What an item of a batch meets: quotas and budgets. Rates are for who waits for an answer.
_OF_BATCHES: Final = tuple(metric for metric in Metric if metric.row.kind is Kind.WINDOW)
# Whose limits, and whether an item of a batch meets them.
_Name = tuple[UUID, bool]


class Compiler:
    """Compile what principals are limited to, and keep it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Name, tuple[tuple[ScopeQuota, ...], Limits]] = OrderedDict()
        self._asked: set[_Name] = set()

    def compile(self, principal: Principal, now_s: float, *, is_batch: bool = False) -> Limits:
        """Return the limits of a principal as they are named now, or what its batches meet."""
        if not principal.quotas:
            return NO_LIMITS
        name = principal.key_id, is_batch
        self._asked.add(name)
        kept = self._kept.get(name)
        if kept is not None and now_s < kept[1].until_s:
            if kept[0] is principal.quotas:
                return kept[1]
            if kept[0] == principal.quotas:
                # They were read anew and are compared once, not for each request.
                self._kept[name] = (principal.quotas, kept[1])
                return kept[1]
        metrics = _OF_BATCHES if is_batch else tuple(Metric)
        compiled = compile_limits(principal.quotas, now_s, metrics)
        self._kept[name] = (principal.quotas, compiled)
        self._kept.move_to_end(name)
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
    limits = tuple(
        _limit(scope, metric, amount, now_s)
        for scope in quotas
        for metric in metrics
        if (amount := scope.quota.limit(metric)) is not None
    )
    output_tpms = [limit.amount for limit in limits if limit.metric is Metric.OUTPUT_TPM]
    return Limits(
        limits,
        min((limit.slot.end_s for limit in limits if limit.slot), default=float("inf")),
        any(limit.slot is not None and limit.is_hard for limit in limits),
        any(limit.metric is Metric.QUEUED_TOKENS for limit in limits),
        min(output_tpms, default=None),
        tuple((scope.scope, scope.changed_us) for scope in quotas if scope.changed_us),
    )


def _limit(scope: ScopeQuota, metric: Metric, amount: int, now_s: float) -> Limit:
    if metric.row.kind is not Kind.WINDOW:
        return Limit(scope.scope, metric, amount)
    window = scope.quota.window(metric)
    is_hard = metric is not Metric.BUDGET or scope.quota.budget_hard is not False
    slot = window.slot(now_s)
    return Limit(scope.scope, metric, amount, is_hard, window, slot, scope.changed_us)
