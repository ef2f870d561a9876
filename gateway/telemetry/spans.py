"""A request's timeline as spans: one tree, made at once when all of it is known.

    POST /v1/chat/completions          the root, from the first byte to the last
    ├ sluice.auth … sluice.send        its phases, which tile it
    ├ chat {model}                     one of them: what computes
    │ ├ engine.queue engine.prefill engine.decode sluice.deliver     which tile that, by choice
    │ └ sluice.stream.write            beside them
    └ sluice.quota.settle
      └ sluice.ledger.write

They are written straight into OTLP's messages: by way of the SDK's spans, of which each is made and
then encoded, a tree takes several times as long. It runs on the exporter's thread and is not to be
imported where traces are not sent: OpenTelemetry takes a while to load.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, SpanFlags, Status

from gateway.domain.timeline import Content, Detail, Phase, Timeline
from gateway.telemetry import names
from gateway.telemetry.trace_context import root_span_id
from scheduler.facts import RequestFacts

logger = logging.getLogger(__name__)

_encode: Final = msgspec.json.Encoder().encode

_OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
# What the engine tells comes by another thread; less than this is no time at all.
_NO_TIME_S: Final = 1e-9
_SAMPLED: Final = 1
_OURS: Final = _SAMPLED | SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_THEIRS: Final = _OURS | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK

_Value = str | int | float | bool | Sequence[str]


class SpanMaker:
    """Encode the spans of requests as OTLP has them, all of one resource's `attributes`."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        resource = ExportTraceServiceRequest()
        _put(resource.resource_spans.add().resource.attributes, attributes)
        self._resource = resource

    def encode(self, timelines: Iterable[Timeline]) -> tuple[bytes, int]:
        """Return what to post, and of how many requests it tells.

        One whose spans cannot be made is left out, and logged as our bug.
        """
        request = ExportTraceServiceRequest()
        request.CopyFrom(self._resource)
        scope = request.resource_spans[0].scope_spans.add()
        scope.scope.name = names.SCOPE
        num_made = 0
        for timeline in timelines:
            num_spans = len(scope.spans)
            try:
                add_spans(scope, timeline)
            except Exception:
                logger.exception("a trace could not be made")
                del scope.spans[num_spans:]
            else:
                num_made += 1
        return request.SerializeToString(), num_made


def add_spans(scope: ScopeSpans, timeline: Timeline) -> None:
    """Add a request's tree, the root first."""
    assert timeline.ended_s is not None
    tree = _Tree(scope, timeline)
    root = tree.root()
    for phase in timeline.phases:
        if phase.name == names.CHAT:
            _chat(tree, root, phase)
            continue
        span = tree.add(phase.name, root, phase.begin_s, phase.end_s, phase.detail)
        if phase.name == names.SETTLE:
            for inner in timeline.inner:
                tree.add(inner.name, span, inner.begin_s, inner.end_s, inner.detail)


def _put(attributes: Any, detail: Mapping[str, Any]) -> None:
    """Add attributes where they are to be: to copy them from messages takes three times as long."""
    for key, value in detail.items():
        _set(attributes.add(key=key).value, value)


def _set(target: AnyValue, value: Any) -> None:
    # By the exact type: True is an integer too.
    if (field := _FIELDS.get(type(value))) is not None:
        setattr(target, field, value)
        return
    assert isinstance(value, Sequence), value
    for one in value:
        _set(target.array_value.values.add(), one)


_FIELDS: Final[Mapping[type, str]] = {
    str: "string_value",
    bool: "bool_value",
    int: "int_value",
    float: "double_value",
}


class _Tree:
    """Add the spans of one request, each named by its id."""

    def __init__(self, scope: ScopeSpans, timeline: Timeline) -> None:
        self.timeline = timeline
        self._spans = scope.spans
        self._trace_id = timeline.trace_id.to_bytes(16, "big")
        self._state = timeline.tracestate or ""

    def root(self) -> bytes:
        timeline = self.timeline
        assert timeline.ended_s is not None
        own = root_span_id(int(timeline.request_id, 16)).to_bytes(8, "big")
        theirs = timeline.parent if timeline.is_continued else None
        span = self._add(
            _root_name(timeline),
            own,
            b"" if theirs is None else theirs.span_id.to_bytes(8, "big"),
            (timeline.began_s, timeline.ended_s),
            _root_detail(timeline),
            _refusal(timeline),
        )
        span.kind = Span.SPAN_KIND_INTERNAL if timeline.batch_id else Span.SPAN_KIND_SERVER
        if theirs is not None:
            span.flags = _THEIRS
        for trace_id, span_id in _linked(timeline):
            span.links.add(
                trace_id=trace_id.to_bytes(16, "big"),
                span_id=span_id.to_bytes(8, "big"),
                flags=_THEIRS,
            )
        if _has_failed(timeline):
            span.status.code = Status.STATUS_CODE_ERROR
        return own

    def add(
        self,
        name: str,
        parent: bytes,
        begin_s: float,
        end_s: float,
        detail: Mapping[str, _Value] | None = None,
        events: Iterable[_Event] = (),
    ) -> bytes:
        own = (random.getrandbits(64) or 1).to_bytes(8, "big")
        self._add(name, own, parent, (begin_s, end_s), detail, events)
        return own

    def _add(
        self,
        name: str,
        own: bytes,
        parent: bytes,
        times: tuple[float, float],
        detail: Mapping[str, _Value] | None,
        events: Iterable[_Event],
    ) -> Span:
        begin_s, end_s = times
        span: Span = self._spans.add(
            trace_id=self._trace_id,
            span_id=own,
            parent_span_id=parent,
            flags=_OURS,
            name=name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=self._ns(begin_s),
            end_time_unix_nano=self._ns(max(begin_s, end_s)),
        )
        if self._state:
            span.trace_state = self._state
        if detail:
            _put(span.attributes, detail)
        for event, at_s, said in events:
            told = span.events.add(name=event, time_unix_nano=self._ns(at_s))
            if said:
                _put(told.attributes, said)
        return span

    def _ns(self, at_s: float) -> int:
        timeline = self.timeline
        return timeline.began_ns + int((at_s - timeline.began_s) * 1e9)


_Event = tuple[str, float, Detail | None]


def _linked(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """Name the spans of other traces that this one has to do with."""
    if timeline.parent is not None and not timeline.is_continued:
        yield timeline.parent
    if (batch_id := timeline.batch_id) is not None:
        # The request that made the batch gave it its id.
        yield batch_id.int, root_span_id(batch_id.int)
    if (previous_id := timeline.previous_id) is not None:
        yield previous_id.int, root_span_id(previous_id.int)


def _root_name(timeline: Timeline) -> str:
    if timeline.batch_id is not None:
        return names.ITEM
    return f"{timeline.method} {timeline.route}" if timeline.route else timeline.method


def _root_detail(timeline: Timeline) -> dict[str, _Value]:
    detail: dict[str, _Value] = {names.REQUEST_ID: f"req_{timeline.request_id}"}
    if timeline.method:
        detail[names.HTTP_METHOD] = timeline.method
    if timeline.route:
        detail[names.HTTP_ROUTE] = timeline.route
    if timeline.status:
        detail[names.HTTP_STATUS] = timeline.status
    if timeline.code:
        detail[names.ERROR_TYPE] = timeline.code
    for name, value in (
        (names.TENANT_ID, timeline.tenant_id),
        (names.ORGANISATION_ID, timeline.organisation_id),
        (names.KEY_ID, timeline.key_id),
        (names.BATCH_ID, timeline.batch_id),
    ):
        if value is not None:
            detail[name] = str(value)
    if timeline.attempt:
        detail[names.ITEM_ATTEMPT] = timeline.attempt
    if timeline.outcome:
        detail[names.OUTCOME] = timeline.outcome
        detail[names.NANO_USD] = timeline.nano_usd
    return detail


def _refusal(timeline: Timeline) -> list[_Event]:
    """Tell at the end of which phase it was refused, and by what."""
    if timeline.status < 400 or not timeline.phases:
        return []
    last = [phase for phase in timeline.phases if phase.name != names.SEND]
    at_s = last[-1].end_s if last else timeline.began_s
    detail: Detail = {names.CAUSE: timeline.code}
    if timeline.limit:
        detail[names.QUOTA_LIMIT] = timeline.limit
    return [(names.REFUSED, at_s, detail)]


def _has_failed(timeline: Timeline) -> bool:
    return timeline.status >= 500 or (timeline.status < 400 and bool(timeline.code))


def _chat(tree: _Tree, root: bytes, phase: Phase) -> None:
    timeline = tree.timeline
    operation = _OPERATIONS.get(timeline.route, names.CHAT)
    span = tree.add(
        f"{operation} {timeline.model}",
        root,
        phase.begin_s,
        phase.end_s,
        _chat_detail(timeline, operation) | _content_detail(timeline.content),
        timeline.remarks,
    )
    for index, facts in enumerate(timeline.facts):
        _engine(tree, span, phase, index, facts)
    begin_s, end_s = timeline.first_write_s, timeline.last_write_s
    if timeline.is_stream and begin_s is not None and end_s is not None:
        tree.add(
            names.WRITE,
            span,
            min(max(begin_s, phase.begin_s), phase.end_s),
            min(end_s, phase.end_s),
            {
                names.EVENTS: timeline.num_events,
                names.BYTES: timeline.num_bytes,
                names.STALL_MS: round(timeline.stall_s * 1000, 3),
                names.OUTCOME: timeline.outcome,
            },
        )


def _chat_detail(timeline: Timeline, operation: str) -> dict[str, _Value]:
    detail: dict[str, _Value] = {
        names.OPERATION: operation,
        names.PROVIDER: names.SCOPE,
        names.REQUEST_MODEL: timeline.model,
        names.RESPONSE_MODEL: timeline.model,
        names.REQUEST_CHOICES: timeline.num_choices,
        names.REQUEST_STREAM: timeline.is_stream,
        names.TIER: timeline.tier,
        names.INPUT_TOKENS: timeline.input_tokens,
        names.CACHED_TOKENS: timeline.cached_tokens,
        names.OUTPUT_TOKENS: timeline.output_tokens,
    }
    if timeline.max_tokens:
        detail[names.REQUEST_MAX_TOKENS] = timeline.max_tokens
    if timeline.finish_reasons:
        detail[names.FINISH_REASONS] = timeline.finish_reasons
    if timeline.first_token_s is not None:
        detail[names.FIRST_CHUNK_S] = timeline.first_token_s - timeline.began_s
    if timeline.ttft_slo_s is not None:
        detail[names.TTFT_SLO_MS] = timeline.ttft_slo_s * 1000
    if timeline.tpot_slo_s is not None:
        detail[names.TPOT_SLO_MS] = timeline.tpot_slo_s * 1000
    return detail


def _content_detail(content: Content | None) -> dict[str, _Value]:
    """Spell what was sent and answered as the GenAI conventions have it: JSON of messages."""
    if content is None:
        return {}
    sent = [(role, text) for role, text in content.input]
    answered = [("assistant", text) for text in content.output]
    return {
        name: _encode(
            [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in said]
        ).decode()
        for name, said in ((names.INPUT_MESSAGES, sent), (names.OUTPUT_MESSAGES, answered))
    }


def _engine(tree: _Tree, parent: bytes, chat: Phase, index: int, facts: RequestFacts) -> None:
    """Add what the scheduler says of one generation: parts that tile the phase it ran in."""

    def within(at_s: float | None) -> float:
        return chat.end_s if at_s is None else min(max(at_s, chat.begin_s), chat.end_s)

    ended_s = within(facts.ended_s)
    admitted_s = min(within(facts.admitted_s), ended_s)
    first_s = min(within(facts.first_token_s), ended_s)
    choice: Detail = {names.CHOICE: index}
    queue = choice | {names.TIER: tree.timeline.tier, names.QUEUE_POSITION: facts.num_ahead}
    waits = _waits(facts, admitted_s)
    tree.add(names.QUEUE, parent, chat.begin_s, admitted_s, queue, waits)
    if facts.admitted_s is not None:
        prefill = choice | {
            names.CHUNKS: facts.num_chunks,
            names.CACHED_TOKENS: facts.num_cached_tokens,
        }
        tree.add(names.PREFILL, parent, admitted_s, first_s, prefill)
    if facts.first_token_s is not None:
        decode = choice | {
            names.OUTPUT_TOKENS: facts.num_output_tokens,
            names.PREEMPTIONS: len(facts.preemptions),
        }
        events = [(names.FIRST_TOKEN, first_s, None), *_breaks(facts, ended_s)]
        tree.add(names.DECODE, parent, first_s, ended_s, decode, events)
    if chat.end_s - ended_s > _NO_TIME_S:
        tree.add(names.DELIVER, parent, ended_s, chat.end_s, choice)


def _waits(facts: RequestFacts, at_s: float) -> Iterator[_Event]:
    for cause, waited_s in facts.waits_s.items():
        if waited_s > 0:
            yield names.WAITED, at_s, {names.CAUSE: str(cause), names.SECONDS: waited_s}


def _breaks(facts: RequestFacts, at_s: float) -> Iterator[_Event]:
    for one in facts.preemptions:
        yield names.PREEMPTED, one.at_s, {names.CAUSE: str(one.cause)}
        if one.resumed_s is not None:
            yield names.RESUMED, one.resumed_s, None
    for cause, rested_s in facts.rests_s.items():
        if rested_s > 0:
            yield names.RESTED, at_s, {names.CAUSE: str(cause), names.SECONDS: rested_s}
