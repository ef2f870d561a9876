"""Limits kept by one process alone, while the shared counters are away.

Rates and counts are divided by the number of processes that were alive when it was last known, so
that together they let through no more than the limit. What must never be passed (quotas of tokens
and hard budgets) lets nothing through; a soft budget refuses nothing anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.domain.limits import AMOUNT_AT, Amounts, Denied, Limit, Limits
from gateway.domain.quota import Kind, Metric, Scope
from gateway.errors import CountersUnavailable

_MINUTE_S = 60.0
# Times since 1970 are a quarter of a microsecond apart as floats, and are added up: what is over by
# less is the arithmetic's, not the caller's.
_TOLERANCE_S = 1e-4

_Place = tuple[Scope, Metric]


@dataclass(slots=True)
class LocalLimits:
    """Keep rates (as GCRA's times) and counts by scope and metric."""

    num_gateways: int = 1
    _arrivals_s: dict[_Place, float] = field(default_factory=dict)
    _counts: dict[_Place, int] = field(default_factory=dict)

    def reserve(self, limits: Limits, amounts: Amounts, now_s: float) -> Denied | None:
        """Hold amounts if they fit every limit; else say which they do not.

        Raises: `CountersUnavailable`: a hard quota is among them.
        """
        if limits.has_hard:
            raise CountersUnavailable(retry_after_s=1)
        for limit in limits.limits:
            denied = self._refusal(limit, amounts, now_s)
            if denied is not None:
                return denied
        self._add(limits, amounts, now_s)
        return None

    def extend(self, limits: Limits, tokens: int, now_s: float) -> int:
        """Hold as many more output tokens as fit; return how many."""
        fits = tokens
        for limit in limits.limits:
            if limit.metric is Metric.OUTPUT_TPM:
                share = limit.amount / self.num_gateways
                ahead_s = max(self._arrivals_s.get(_key(limit), 0.0) - now_s, 0.0)
                fits = min(fits, _whole(ahead_s, share))
        if fits >= 1:
            self._add(limits, Amounts(output_tokens=fits), now_s)
        return max(fits, 0)

    def release(self, limits: Limits, held: Amounts, used: Amounts, now_s: float) -> None:
        """Give back what was held and not used."""
        back = Amounts(*(h - u for h, u in zip(held, used, strict=True)))
        for limit in limits.limits:
            kind = limit.metric.row.kind
            if kind is Kind.WINDOW:
                continue
            is_count = kind is Kind.COUNT
            amount = (held if is_count else back)[AMOUNT_AT[limit.metric]]
            if is_count:
                self._counts[_key(limit)] = max(self._counts.get(_key(limit), 0) - amount, 0)
            elif limit.amount:
                share = limit.amount / self.num_gateways
                self._arrivals_s[_key(limit)] = (
                    self._arrivals_s.get(_key(limit), now_s) - amount * _MINUTE_S / share
                )

    def forget(self) -> None:
        """Begin anew: the shared counters count again."""
        self._arrivals_s.clear()
        self._counts.clear()

    def _refusal(self, limit: Limit, amounts: Amounts, now_s: float) -> Denied | None:
        kind = limit.metric.row.kind
        if kind is Kind.WINDOW:
            return None
        amount = amounts[AMOUNT_AT[limit.metric]]
        if kind is Kind.COUNT:
            # Rounded up, so that a small limit is not none at all.
            share = -(-limit.amount // self.num_gateways)
            used = self._counts.get(_key(limit), 0)
            return Denied(limit, 0.0, share - used, used) if used + amount > share else None
        if amount == 0:
            return None
        per_gateway = limit.amount / self.num_gateways
        if amount > limit.amount or per_gateway == 0:
            return Denied(limit, None, 0, 0)
        ahead_s = max(self._arrivals_s.get(_key(limit), 0.0) - now_s, 0.0)
        # One request may always have the whole of the share, else a large one never passes.
        over_s = ahead_s + min(amount / per_gateway, 1.0) * _MINUTE_S - _MINUTE_S
        if over_s > _TOLERANCE_S:
            left = _whole(ahead_s, per_gateway)
            return Denied(limit, over_s, left, limit.amount - left)
        return None

    def _add(self, limits: Limits, amounts: Amounts, now_s: float) -> None:
        for limit in limits.limits:
            kind = limit.metric.row.kind
            if kind is Kind.WINDOW:
                continue
            key, amount = _key(limit), amounts[AMOUNT_AT[limit.metric]]
            if kind is Kind.COUNT:
                self._counts[key] = self._counts.get(key, 0) + amount
            elif limit.amount:
                cost_s = amount * _MINUTE_S * self.num_gateways / limit.amount
                self._arrivals_s[key] = max(self._arrivals_s.get(key, 0.0), now_s) + cost_s


def _whole(ahead_s: float, share: float) -> int:
    """Return how many units a share has left."""
    return int((_MINUTE_S - ahead_s) * share / _MINUTE_S + 1e-3)


def _key(limit: Limit) -> _Place:
    return limit.scope, limit.metric
