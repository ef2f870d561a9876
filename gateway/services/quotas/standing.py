"""How far the tightest limits of a request are used: on requests, and on tokens.

Tightest is what has the least left, as that is what the next request meets first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.domain.quota import RATES, Metric, Stand, Standing
from gateway.services.quotas.wire import Limit, Limits

_MINUTE_S: Final = 60.0
_OF_TOKENS: Final = (
    Metric.INPUT_TPM,
    Metric.OUTPUT_TPM,
    Metric.DAILY_TOKENS,
    Metric.MONTHLY_TOKENS,
)


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


def standing_of(limits: Limits, tightest: Sequence[Any]) -> Standing | None:
    """Return how limits stand after a reservation; `tightest` is as the counters answered."""
    requests, tokens = (_stand(limits, one) if one else None for one in tightest or (None, None))
    return Standing(requests, tokens) if requests or tokens else None


def standing_of_refusal(denied: Denied, now_s: float) -> Standing | None:
    """Return how the limit stands that refused a request."""
    limit = denied.limit
    left = max(denied.left, 0)
    if limit.slot is not None:
        whole_in_s = max(limit.slot.end_s - now_s, 0.0)
    elif limit.metric in RATES and limit.amount:
        whole_in_s = _MINUTE_S * (1 - left / limit.amount) if denied.wait_s is not None else 0.0
    else:
        whole_in_s = 0.0
    stand = Stand(limit.amount, left, whole_in_s)
    if limit.metric is Metric.RPM:
        return Standing(requests=stand)
    return Standing(tokens=stand) if limit.metric in _OF_TOKENS else None


def _stand(limits: Limits, one: Sequence[Any]) -> Stand:
    scope_at, entry_at, left, whole_us = one
    return Stand(limits.at(scope_at, entry_at).amount, int(left), whole_us / 1_000_000)
