"""A finished request as its record shows it: what of it, when, why, and who held it up.

Times are seconds after the request began. Nothing is here that its timeline lacks, and so nothing
of what its tenant sent. A record is bounded: of many phases, remarks, generations or preemptions
the first are kept, and `num_left_out` counts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.domain.request_record import Explanation, RequestRecord
from gateway.domain.timeline import Timeline
from gateway.services.requests.causes import explain
from scheduler.facts import RequestFacts

T = TypeVar("T")

MAX_MOMENTS: Final = 32
MAX_GENERATIONS: Final = 8
MAX_TEXT: Final = 128


def record_of(timeline: Timeline) -> RequestRecord | None:
    """Make the record of a finished request; None: it was nobody's, so that nobody may see it."""
    if timeline.tenant_id is None or timeline.organisation_id is None:
        return None
    explanation = explain(timeline)
    first_s = timeline.first_token_s
    return RequestRecord(
        request_id=UUID(hex=timeline.request_id),
        at=datetime.fromtimestamp(timeline.began_ns / 1e9, UTC),
        organisation_id=timeline.organisation_id,
        tenant_id=timeline.tenant_id,
        key_id=timeline.key_id,
        model=timeline.model[:MAX_TEXT],
        tier=timeline.tier,
        status=timeline.status,
        code=timeline.code,
        outcome=timeline.outcome,
        cause=explanation.cause,
        missed=tuple(sorted(timeline.missed())),
        is_preempted=any(facts.preemptions for facts in timeline.facts),
        is_degraded=timeline.is_degraded,
        duration_s=_rounded(explanation.total_s),
        ttft_s=None if first_s is None else _rounded(first_s - timeline.began_s),
        output_tokens=timeline.output_tokens,
        details=_details(timeline, explanation),
    )


def _details(timeline: Timeline, explanation: Explanation) -> dict[str, Any]:
    def after(at_s: float | None) -> float | None:
        return None if at_s is None else _rounded(at_s - timeline.began_s)

    few = _Few()
    return {
        "sentence": explanation.sentence,
        "contributions": [
            {"cause": one.cause.value, "seconds": _rounded(one.seconds)}
            for one in explanation.contributions
        ],
        "method": timeline.method,
        "route": timeline.route,
        "trace_id": f"{timeline.trace_id:032x}" if timeline.trace_id else None,
        "batch_id": None if timeline.batch_id is None else str(timeline.batch_id),
        "is_stream": timeline.is_stream,
        "num_choices": timeline.num_choices,
        "max_tokens": timeline.max_tokens,
        "limit": timeline.limit,
        "finish_reasons": few.of(timeline.finish_reasons, MAX_GENERATIONS, str),
        "input_tokens": timeline.input_tokens,
        "cached_tokens": timeline.cached_tokens,
        "nano_usd": timeline.nano_usd,
        "num_events": timeline.num_events,
        "num_bytes": timeline.num_bytes,
        "stall_s": _rounded(timeline.stall_s),
        "ttft_slo_s": timeline.ttft_slo_s,
        "tpot_slo_s": timeline.tpot_slo_s,
        "first_token_s": after(timeline.first_token_s),
        "last_token_s": after(timeline.last_token_s),
        "phases": few.of(
            timeline.phases,
            MAX_MOMENTS,
            lambda one: {
                "name": one.name,
                "begin_s": after(one.begin_s),
                "end_s": after(one.end_s),
                "detail": _short(one.detail),
            },
        ),
        "remarks": few.of(
            timeline.remarks,
            MAX_MOMENTS,
            lambda one: {"name": one.name, "at_s": after(one.at_s), "detail": _short(one.detail)},
        ),
        "generations": few.of(
            timeline.facts, MAX_GENERATIONS, lambda one: _generation(one, after, few)
        ),
        "num_left_out": few.num_left_out,
    }


def _generation(
    facts: RequestFacts, after: Callable[[float | None], float | None], few: _Few
) -> dict[str, Any]:
    return {
        "queued_s": after(facts.queued_s),
        "num_ahead": facts.num_ahead,
        "admitted_s": after(facts.admitted_s),
        "first_token_s": after(facts.first_token_s),
        "ended_s": after(facts.ended_s),
        "waits_s": {wait.value: _rounded(took_s) for wait, took_s in facts.waits_s.items()},
        "rests_s": {rest: _rounded(took_s) for rest, took_s in facts.rests_s.items()},
        "num_chunks": facts.num_chunks,
        "num_cached_tokens": facts.num_cached_tokens,
        "num_output_tokens": facts.num_output_tokens,
        "preemptions": few.of(
            facts.preemptions,
            MAX_GENERATIONS,
            lambda one: {
                "at_s": after(one.at_s),
                "cause": one.cause.value,
                "resumed_s": after(one.resumed_s),
            },
        ),
    }


class _Few:
    """Show the first of what may be many."""

    def __init__(self) -> None:
        self.num_left_out = 0

    def of(self, many: Sequence[T], at_most: int, show: Callable[[T], Any]) -> list[Any]:
        self.num_left_out += max(0, len(many) - at_most)
        return [show(one) for one in many[:at_most]]


def _short(detail: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        name: value[:MAX_TEXT] if isinstance(value, str) else value
        for name, value in (detail or {}).items()
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
