"""Timelines of requests that have ended, for whoever is told of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from gateway.domain.timeline import Timeline
from scheduler.facts import RequestFacts, WaitCause

TENANT = UUID(int=7)


def ended(**changes: Any) -> Timeline:
    """Make one that took two seconds: half of one in the queue, one to its first token."""
    timeline = Timeline(uuid4().hex, 100.0, 1_700_000_000_000_000_000)
    values: dict[str, Any] = {
        "method": "POST",
        "route": "/v1/chat/completions",
        "tenant_id": TENANT,
        "model": "m",
        "tier": "default",
        "is_stream": True,
        "facts": (
            RequestFacts(
                queued_s=100.1,
                num_ahead=3,
                admitted_s=100.6,
                first_token_s=101.0,
                ended_s=102.0,
                waits_s={WaitCause.SLOTS: 0.4, WaitCause.STEP: 0.1},
                num_output_tokens=11,
            ),
        ),
        "status": 200,
        "outcome": "completed",
        "finish_reasons": ("stop",),
        "ended_s": 102.0,
        "input_tokens": 30,
        "cached_tokens": 16,
        "output_tokens": 11,
        "nano_usd": 5_000_000,
        "num_events": 13,
        "max_gap_s": 0.3,
        "first_token_s": 101.0,
        "last_token_s": 101.9,
        "ttft_slo_s": 0.5,
        "tpot_slo_s": 0.1,
    }
    for name, value in (values | changes).items():
        setattr(timeline, name, value)
    return timeline


def refused(**changes: Any) -> Timeline:
    """Make one that a limit refused."""
    nothing: dict[str, Any] = {
        "facts": (),
        "status": 429,
        "outcome": "",
        "finish_reasons": (),
        "code": "rate_limit_exceeded",
        "limit": "tenant.requests_per_minute",
        "input_tokens": 0,
        "cached_tokens": 0,
        "output_tokens": 0,
        "nano_usd": 0,
        "is_stream": False,
        "first_token_s": None,
        "last_token_s": None,
    }
    return ended(**(nothing | changes))
