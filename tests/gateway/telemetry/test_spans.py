"""Timelines as spans, in the ways that a small test can make exactly."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from gateway.domain.timeline import SpanName, Timeline
from gateway.telemetry import names
from gateway.telemetry.spans import SpanMaker
from scheduler.facts import Preempted, PreemptionCause, RequestFacts, WaitCause

MAKER = SpanMaker(Resource({}))
ID = "0af7651916cd43dd8448eb211c80319c"


def computed(*facts: RequestFacts, status: int = 200, code: str = "") -> Timeline:
    """A request that computed from second 11 to second 15."""
    timeline = Timeline(ID, 10.0, 1_000_000_000, method="POST", route="/v1/chat/completions")
    timeline.trace_id = int(ID, 16)
    timeline.enter(names.AUTH, 10.0)
    timeline.enter(names.CHAT, 11.0)
    timeline.enter(names.SEND, 15.0)
    timeline.end(16.0)
    timeline.model, timeline.facts, timeline.status, timeline.code = "m", facts, status, code
    return timeline


def named(spans: Sequence[ReadableSpan], name: str) -> ReadableSpan:
    [span] = [span for span in spans if span.name == name]
    return span


def took_s(span: ReadableSpan) -> float:
    assert span.end_time is not None
    assert span.start_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_the_engines_spans_tile_what_computed() -> None:
    """Queue, prefill, decode and delivery follow each other; waits and preemptions are events."""
    facts = RequestFacts(
        queued_s=11.001,
        num_ahead=3,
        admitted_s=12.0,
        first_token_s=13.0,
        ended_s=14.5,
        waits_s={WaitCause.SLOTS: 0.999},
        rests_s={"preempted": 0.5},
        num_chunks=2,
        preemptions=(Preempted(13.5, PreemptionCause.BLOCKS, 14.0),),
    )
    spans = MAKER.spans(computed(facts))
    parts = [named(spans, name) for name in (names.QUEUE, names.PREFILL, names.DECODE)]
    assert [took_s(span) for span in [*parts, named(spans, names.DELIVER)]] == [1, 1, 1.5, 0.5]
    [waited] = parts[0].events
    assert waited.name == names.WAITED
    assert dict(waited.attributes or {}) == {names.CAUSE: "slots", names.SECONDS: 0.999}
    events = [event.name for event in parts[2].events]
    assert events == [names.FIRST_TOKEN, names.PREEMPTED, names.RESUMED, names.RESTED]
    chat = named(spans, "chat m")
    assert all(span.parent == chat.context for span in parts)


def test_embeddings_are_an_operation_that_draws_nothing() -> None:
    """Their span has the conventions' name; prefill goes up to the end, and there is no decode."""
    facts = RequestFacts(
        queued_s=11.0, num_ahead=0, admitted_s=12.0, first_token_s=None, ended_s=14.0
    )
    timeline = computed(facts)
    timeline.route = "/v1/embeddings"
    spans = MAKER.spans(timeline)
    span = named(spans, "embeddings m")
    assert (span.attributes or {})[names.OPERATION] == "embeddings"
    assert names.REQUEST_MAX_TOKENS not in (span.attributes or {})
    assert took_s(named(spans, names.PREFILL)) == 2
    assert not [span for span in spans if span.name == names.DECODE]


def test_one_that_never_ran_was_queued_alone() -> None:
    """Cancelled in the queue, its time ends with the phase that it was in."""
    facts = RequestFacts(
        queued_s=11.0, num_ahead=0, admitted_s=None, first_token_s=None, ended_s=99.0
    )
    spans = MAKER.spans(computed(facts))
    assert took_s(named(spans, names.QUEUE)) == 4
    assert not [span for span in spans if span.name in (names.PREFILL, names.DECODE)]


def test_a_refusal_is_an_event_with_its_limit() -> None:
    """It stands where the request was refused; a server's fault marks the root as failed."""
    timeline = computed(status=429, code="rate_limit_exceeded")
    timeline.limit = "tenant.rpm"
    root = MAKER.spans(timeline)[0]
    [event] = root.events
    assert dict(event.attributes or {}) == {
        names.CAUSE: "rate_limit_exceeded",
        names.QUOTA_LIMIT: "tenant.rpm",
    }
    assert event.timestamp == 6_000_000_000
    assert root.status.is_unset
    assert not MAKER.spans(computed(status=500, code="internal_error"))[0].status.is_ok
    assert MAKER.spans(computed(status=200, code="internal_error"))[0].status.status_code.value == 2


def test_a_strangers_parent_is_linked_and_a_trusted_ones_continued() -> None:
    """The trace is ours in the first case and theirs in the second, with its state."""
    timeline = computed()
    timeline.parent = SpanName(7, 8)
    root = MAKER.spans(timeline)[0]
    assert root.parent is None
    assert [link.context.span_id for link in root.links] == [8]
    timeline.is_continued, timeline.trace_id, timeline.tracestate = True, 7, "a=1"
    root = MAKER.spans(timeline)[0]
    assert root.parent is not None
    assert (root.parent.span_id, root.context and root.context.trace_id) == (8, 7)
    assert not root.links
    assert root.context is not None
    assert root.context.trace_state.to_header() == "a=1"


def test_an_item_of_a_batch_is_linked_to_its_making() -> None:
    """The request that made the batch gave it its id, which is that trace's id."""
    timeline = computed()
    timeline.batch_id, timeline.attempt = UUID(int=(1 << 64) + 5), 2
    root = MAKER.spans(timeline)[0]
    [link] = root.links
    assert (link.context.trace_id, link.context.span_id) == ((1 << 64) + 5, 5)
    assert root.name == names.ITEM
    assert (root.attributes or {})[names.ITEM_ATTEMPT] == 2
