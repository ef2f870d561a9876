"""How large a round of the gateway's bench is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBenchOptions:
    """Size a round: requests that each server answers, and long streams among them."""

    requests: int = 2000
    streams: int = 100
    connections: int = 16
    rounds: int = 15
    rate_rps: float = 300.0
    latency_s: float = 4.0
    litellm: Path | None = None
