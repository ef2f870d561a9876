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
# Times since 1970 are a quarter of a microsecond apart as floats: what is over by less is the
# arithmetic's, not the caller's.
_TOLERANCE_S = 1e-4

_Place = tuple[Scope, Metric]


@dataclass(slots=True)
class LocalLimits:
    """Keep rates and counts by scope and metric.

    A rate is how much of this process's share was used, and when: an amount means the same
    whatever the limit, or the number of processes, becomes.
    """

    num_gateways: int = 1
    _rates: dict[_Place, tuple[float, float]] = field(default_factory=dict)
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
                fits = min(fits, _whole(share - self._level(limit, now_s)))
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
            else:
                was, at_s = self._rates.get(_key(limit), (0.0, now_s))
                self._rates[_key(limit)] = was - amount, at_s

    def forget(self) -> None:
        """Begin anew: the shared counters count again."""
        self._rates.clear()
        self._counts.clear()

    def _refusal(self, limit: Limit, amounts: Amounts, now_s: float) -> Denied | None:
        kind = limit.metric.row.kind
        if kind is Kind.WINDOW:
            return None
        amount = amounts[AMOUNT_AT[limit.metric]]
        if kind is Kind.COUNT:
            # Rounded up, so that a small limit is not none at all.
            places = -(-limit.amount // self.num_gateways)
            taken = self._counts.get(_key(limit), 0)
            return Denied(limit, 0.0, places - taken, taken) if taken + amount > places else None
        if amount == 0:
            return None
        share = limit.amount / self.num_gateways
        if amount > limit.amount or share == 0:
            return Denied(limit, None, 0, 0)
        used = self._level(limit, now_s)
        # One request may always have the whole of the share, else a large one never passes.
        over_s = (used + min(amount, share) - share) * _MINUTE_S / share
        if over_s > _TOLERANCE_S:
            left = _whole(share - used)
            return Denied(limit, over_s, left, limit.amount - left)
        return None

    def _level(self, limit: Limit, now_s: float) -> float:
        """Return what is used of this process's share of a rate.

        More than all of it where one request took more; no more than that where it is smaller now.
        """
        was, at_s = self._rates.get(_key(limit), (0.0, now_s))
        given_back = max(now_s - at_s, 0.0) * limit.amount / self.num_gateways / _MINUTE_S
        return max(min(was, limit.amount) - given_back, 0.0)

    def _add(self, limits: Limits, amounts: Amounts, now_s: float) -> None:
        for limit in limits.limits:
            kind = limit.metric.row.kind
            if kind is Kind.WINDOW:
                continue
            key, amount = _key(limit), amounts[AMOUNT_AT[limit.metric]]
            if kind is Kind.COUNT:
                self._counts[key] = self._counts.get(key, 0) + amount
            elif amount:
                self._rates[key] = self._level(limit, now_s) + amount, now_s


def _whole(left: float) -> int:
    """Return how many whole units are left."""
    return max(int(left + 1e-3), 0)


def _key(limit: Limit) -> _Place:
    return limit.scope, limit.metric
