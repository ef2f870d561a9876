"""What becomes of an item whose run failed: whose fault it is, and what has to change first.

A fault of the item's own is its answer. What is wrong with the key, the model or the budget holds
for the whole batch, which waits for that with a reason. What is wrong with this server is no fault
of the item's: it comes again later, and no attempt is counted, so that an item never fails because
a server was busy. A fault of the engine is counted, as the item may be what causes it.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Final

from gateway.domain.batch import PausedFor
from gateway.errors import (
    AuthenticationFailed,
    GatewayError,
    InternalFailure,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    TenantLimited,
)

# After the first attempt.
MAX_RETRIES: Final = 3
_MAX_BACKOFF_S: Final = 60.0


class Fate(Enum):
    """Say what to do with an item; see the module."""

    ANSWER = "answer"
    AGAIN = "again"
    LATER = "later"


def fate_of(error: GatewayError) -> Fate | PausedFor:
    """Say what becomes of an item whose run ended so."""
    if isinstance(error, QuotaExhausted):
        return PausedFor.BUDGET
    if isinstance(error, AuthenticationFailed):
        return PausedFor.KEY_REVOKED
    if isinstance(error, ModelNotFound):
        return PausedFor.MODEL_NOT_FOUND
    if isinstance(error, TenantLimited):
        return Fate.ANSWER if error.never_fits else Fate.LATER
    if isinstance(error, Overloaded):
        return Fate.LATER
    return Fate.AGAIN if isinstance(error, InternalFailure) else Fate.ANSWER


def backoff_s(nth: int) -> float:
    """Say how long to wait after the nth failure in a row, from 1 on, in seconds."""
    return min(2.0 ** min(nth, 6), _MAX_BACKOFF_S) * random.uniform(0.5, 1.0)
