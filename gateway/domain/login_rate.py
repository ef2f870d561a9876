"""How often somebody may try to sign in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """Name what is counted, and its rate: `burst` at once, then one each `interval_s`."""

    kind: str
    whom: str
    burst: int
    interval_s: float
