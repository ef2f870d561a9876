"""Timelines as spans, in the ways that a small test can make exactly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.domain.timeline import SpanName, Timeline
from gateway.telemetry import names
from gateway.telemetry.spans import SpanMaker
from scheduler.facts import Preempted, PreemptionCause, RequestFacts, WaitCause
from tests.trace_receiver import attributes

MAKER = SpanMaker({"service.name": "front"})
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


def spans_of(*timelines: Timeline) -> list[Span]:
    encoded, num_made = MAKER.encode(timelines)
    assert num_made == len(timelines)
    [resource] = ExportTraceServiceRequest.FromString(encoded).resource_spans
    assert [one.key for one in resource.resource.attributes] == ["service.name"]
    [scope] = resource.scope_spans
    return list(scope.spans)


def named(spans: Sequence[Span], name: str) -> Span:
    [span] = [span for span in spans if span.name == name]
    return span


def took_s(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


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
    spans = spans_of(computed(facts))
    parts = [named(spans, name) for name in (names.QUEUE, names.PREFILL, names.DECODE)]
    assert [took_s(span) for span in [*parts, named(spans, names.DELIVER)]] == [1, 1, 1.5, 0.5]
    [waited] = parts[0].events
    assert waited.name == names.WAITED
    assert attributes(waited) == {names.CAUSE: "slots", names.SECONDS: 0.999}
    events = [event.name for event in parts[2].events]
    assert events == [names.FIRST_TOKEN, names.PREEMPTED, names.RESUMED, names.RESTED]
    chat = named(spans, "chat m")
    assert all(span.parent_span_id == chat.span_id for span in parts)


def test_embeddings_are_an_operation_that_draws_nothing() -> None:
    """Their span has the conventions' name; prefill goes up to the end, and there is no decode."""
    facts = RequestFacts(
        queued_s=11.0, num_ahead=0, admitted_s=12.0, first_token_s=None, ended_s=14.0
    )
    timeline = computed(facts)
    timeline.route = "/v1/embeddings"
    spans = spans_of(timeline)
    span = named(spans, "embeddings m")
    assert attributes(span)[names.OPERATION] == "embeddings"
    assert names.REQUEST_MAX_TOKENS not in attributes(span)
    assert took_s(named(spans, names.PREFILL)) == 2
    assert not [span for span in spans if span.name == names.DECODE]


def test_one_that_never_ran_was_queued_alone() -> None:
    """Cancelled in the queue, its time ends with the phase that it was in."""
    facts = RequestFacts(
        queued_s=11.0, num_ahead=0, admitted_s=None, first_token_s=None, ended_s=99.0
    )
    spans = spans_of(computed(facts))
    assert took_s(named(spans, names.QUEUE)) == 4
    assert not [span for span in spans if span.name in (names.PREFILL, names.DECODE)]


def test_a_refusal_is_an_event_with_its_limit() -> None:
    """It stands where the request was refused; a server's fault marks the root as failed."""
    timeline = computed(status=429, code="rate_limit_exceeded")
    timeline.limit = "tenant.rpm"
    root = spans_of(timeline)[0]
    [event] = root.events
    assert attributes(event) == {
        names.CAUSE: "rate_limit_exceeded",
        names.QUOTA_LIMIT: "tenant.rpm",
    }
    assert event.time_unix_nano == 6_000_000_000
    assert root.status.code == Status.STATUS_CODE_UNSET
    for status in (500, 200):
        failed = spans_of(computed(status=status, code="internal_error"))[0]
        assert failed.status.code == Status.STATUS_CODE_ERROR


def test_a_strangers_parent_is_linked_and_a_trusted_ones_continued() -> None:
    """The trace is ours in the first case and theirs in the second, with its state."""
    timeline = computed()
    timeline.parent = SpanName(7, 8)
    root = spans_of(timeline)[0]
    assert not root.parent_span_id
    assert [link.span_id for link in root.links] == [(8).to_bytes(8, "big")]
    timeline.is_continued, timeline.trace_id, timeline.tracestate = True, 7, "a=1"
    root = spans_of(timeline)[0]
    assert (int.from_bytes(root.parent_span_id, "big"), int.from_bytes(root.trace_id, "big")) == (
        8,
        7,
    )
    assert not root.links
    assert root.trace_state == "a=1"


def test_an_item_of_a_batch_is_linked_to_its_making() -> None:
    """The request that made the batch gave it its id, which is that trace's id."""
    timeline = computed()
    timeline.batch_id, timeline.attempt = UUID(int=(1 << 64) + 5), 2
    root = spans_of(timeline)[0]
    [link] = root.links
    assert link.trace_id == ((1 << 64) + 5).to_bytes(16, "big")
    assert link.span_id == (5).to_bytes(8, "big")
    assert root.name == names.ITEM
    assert attributes(root)[names.ITEM_ATTEMPT] == 2


def test_an_item_that_is_run_again_is_linked_to_the_run_before() -> None:
    """Its request's id is that trace's id, as of any request."""
    timeline = computed()
    timeline.batch_id, timeline.previous_id = UUID(int=5), UUID(int=(1 << 64) + 6)
    links = spans_of(timeline)[0].links
    assert [int.from_bytes(link.trace_id, "big") for link in links] == [5, (1 << 64) + 6]
    assert [int.from_bytes(link.span_id, "big") for link in links] == [5, 6]


def test_values_keep_their_kinds() -> None:
    """A yes is no number, and what is many is a list."""
    timeline = computed()
    timeline.is_stream, timeline.finish_reasons = True, ("stop", "length")
    told = attributes(named(spans_of(timeline), "chat m"))
    assert told[names.REQUEST_STREAM] is True
    assert list(told[names.FINISH_REASONS]) == ["stop", "length"]
    assert told[names.INPUT_TOKENS] == 0


def test_one_that_cannot_be_made_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither spans nor a gap: those beside it are told whole, and the bug is logged."""
    bad = computed()
    bad.ended_s, bad.phases[-1:] = 16.0, [bad.phases[-1]._replace(begin_s=float("nan"))]
    with caplog.at_level(logging.ERROR):
        encoded, num_made = MAKER.encode([computed(), bad, computed()])
    assert num_made == 2
    assert len(caplog.records) == 1
    [scope] = ExportTraceServiceRequest.FromString(encoded).resource_spans[0].scope_spans
    assert len(scope.spans) == 2 * len(spans_of(computed()))
