"""How the limit stands that refused a request: on requests, or on tokens."""

from __future__ import annotations

from typing import Final

from gateway.domain.limits import Denied
from gateway.domain.quota import Kind, Stand, Standing

_MINUTE_S: Final = 60.0
_OF_TOKENS: Final = ("input_tokens", "output_tokens", "tokens")


def standing_of_refusal(denied: Denied, now_s: float) -> Standing | None:
    """Return how the limit stands that refused a request."""
    limit = denied.limit
    row = limit.metric.row
    left = max(denied.left, 0)
    if limit.slot is not None:
        whole_in_s = max(limit.slot.end_s - now_s, 0.0)
    elif row.kind is Kind.RATE and limit.amount:
        whole_in_s = _MINUTE_S * (1 - left / limit.amount) if denied.wait_s is not None else 0.0
    else:
        whole_in_s = 0.0
    stand = Stand(limit.amount, left, whole_in_s)
    if row.counts == "requests":
        return Standing(requests=stand)
    return Standing(tokens=stand) if row.counts in _OF_TOKENS else None
