"""A request's timeline as spans: one tree, made at once when all of it is known.

    POST /v1/chat/completions          the root, from the first byte to the last
    ├ sluice.auth … sluice.send        its phases, which tile it
    ├ chat {model}                     one of them: what computes
    │ ├ engine.queue engine.prefill engine.decode sluice.deliver     which tile that, by choice
    │ └ sluice.stream.write            beside them
    └ sluice.quota.settle
      └ sluice.ledger.write

Nothing here has seen what a tenant sent: a `Timeline` holds none of it. It runs on the exporter's
thread and is not to be imported where traces are not sent: OpenTelemetry takes a while to load.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from gateway.domain.timeline import Detail, Phase, Timeline
from gateway.telemetry import names
from gateway.telemetry.trace_context import root_span_id
from scheduler.facts import RequestFacts

_SCOPE: Final = InstrumentationScope(names.SCOPE)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_OPERATIONS: Final = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
_UNSET: Final = Status(StatusCode.UNSET)
# What the engine tells comes by another thread; less than this is no time at all.
_NO_TIME_S: Final = 1e-9

_Value = str | int | float | bool | Sequence[str]


class SpanMaker:
    """Make the spans of requests, all of one `resource`."""

    def __init__(self, resource: Resource) -> None:
        self._resource = _HashedOnce(resource)

    def spans(self, timeline: Timeline) -> list[ReadableSpan]:
        """Return a request's tree, the root first."""
        assert timeline.ended_s is not None
        tree = _Tree(self._resource, timeline)
        root = tree.root()
        for phase in timeline.phases:
            if phase.name == names.CHAT:
                self._chat(tree, root, phase)
                continue
            span = tree.add(phase.name, root, phase.begin_s, phase.end_s, phase.detail)
            if phase.name == names.SETTLE:
                for inner in timeline.inner:
                    tree.add(inner.name, span, inner.begin_s, inner.end_s, inner.detail)
        return tree.spans

    def _chat(self, tree: _Tree, root: SpanContext, phase: Phase) -> None:
        timeline = tree.timeline
        operation = _OPERATIONS.get(timeline.route, names.CHAT)
        span = tree.add(
            f"{operation} {timeline.model}",
            root,
            phase.begin_s,
            phase.end_s,
            _chat_detail(timeline, operation),
            events=[tree.event(*remark) for remark in timeline.remarks],
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


class _HashedOnce(Resource):
    """Be a resource whose hash is known: the encoder asks for it with each span, as JSON."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


class _Tree:
    """Gather the spans of one request."""

    def __init__(self, resource: Resource, timeline: Timeline) -> None:
        self.timeline = timeline
        self.spans: list[ReadableSpan] = []
        self._resource = resource
        self._state = TraceState.from_header([timeline.tracestate or ""])

    def root(self) -> SpanContext:
        timeline = self.timeline
        assert timeline.ended_s is not None
        own = self._context(root_span_id(int(timeline.request_id, 16)))
        theirs, links = None, []
        if (parent := timeline.parent) is not None:
            theirs = SpanContext(parent.trace_id, parent.span_id, is_remote=True)
            links = [] if timeline.is_continued else [Link(theirs)]
        if (batch_id := timeline.batch_id) is not None:
            # The request that made the batch gave it its id.
            made = SpanContext(batch_id.int, root_span_id(batch_id.int), is_remote=True)
            links = [Link(made)]
        self._append(
            _root_name(timeline),
            own,
            theirs if timeline.is_continued else None,
            (timeline.began_s, timeline.ended_s),
            _root_detail(timeline),
            links=links,
            kind=SpanKind.INTERNAL if timeline.batch_id else SpanKind.SERVER,
            events=_refusal(self),
            status=_status(timeline),
        )
        return own

    def add(
        self,
        name: str,
        parent: SpanContext,
        begin_s: float,
        end_s: float,
        detail: Mapping[str, _Value] | None = None,
        events: Sequence[Event] = (),
    ) -> SpanContext:
        own = self._context(random.getrandbits(64) or 1)
        self._append(name, own, parent, (begin_s, end_s), detail or {}, events=events)
        return own

    def event(self, name: str, at_s: float, detail: Detail | None = None) -> Event:
        return Event(name, detail, self._ns(at_s))

    def _append(
        self,
        name: str,
        own: SpanContext,
        parent: SpanContext | None,
        times: tuple[float, float],
        detail: Mapping[str, _Value],
        *,
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        events: Sequence[Event] = (),
        status: Status = _UNSET,
    ) -> None:
        begin_s, end_s = times
        span = ReadableSpan(
            name,
            own,
            parent,
            self._resource,
            detail,
            events,
            links,
            kind,
            None,
            status,
            self._ns(begin_s),
            self._ns(max(begin_s, end_s)),
            _SCOPE,
        )
        self.spans.append(span)

    def _context(self, span_id: int) -> SpanContext:
        return SpanContext(
            self.timeline.trace_id,
            span_id,
            is_remote=False,
            trace_flags=_SAMPLED,
            trace_state=self._state,
        )

    def _ns(self, at_s: float) -> int:
        timeline = self.timeline
        return timeline.began_ns + int((at_s - timeline.began_s) * 1e9)


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


def _refusal(tree: _Tree) -> list[Event]:
    """Tell at the end of which phase it was refused, and by what."""
    timeline = tree.timeline
    if timeline.status < 400 or not timeline.phases:
        return []
    last = [phase for phase in timeline.phases if phase.name != names.SEND]
    at_s = last[-1].end_s if last else timeline.began_s
    detail: Detail = {names.CAUSE: timeline.code}
    if timeline.limit:
        detail[names.QUOTA_LIMIT] = timeline.limit
    return [tree.event(names.REFUSED, at_s, detail)]


def _status(timeline: Timeline) -> Status:
    has_failed = timeline.status >= 500 or (timeline.status < 400 and bool(timeline.code))
    return Status(StatusCode.ERROR if has_failed else StatusCode.UNSET)


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


def _engine(tree: _Tree, parent: SpanContext, chat: Phase, index: int, facts: RequestFacts) -> None:
    """Add what the scheduler says of one generation: parts that tile the phase it ran in."""

    def within(at_s: float | None) -> float:
        return chat.end_s if at_s is None else min(max(at_s, chat.begin_s), chat.end_s)

    ended_s = within(facts.ended_s)
    admitted_s = min(within(facts.admitted_s), ended_s)
    first_s = min(within(facts.first_token_s), ended_s)
    choice: Detail = {names.CHOICE: index}
    queue = choice | {names.TIER: tree.timeline.tier, names.QUEUE_POSITION: facts.num_ahead}
    waits = list(_waits(tree, facts, admitted_s))
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
        events = [tree.event(names.FIRST_TOKEN, first_s), *_breaks(tree, facts, ended_s)]
        tree.add(names.DECODE, parent, first_s, ended_s, decode, events)
    if chat.end_s - ended_s > _NO_TIME_S:
        tree.add(names.DELIVER, parent, ended_s, chat.end_s, choice)


def _waits(tree: _Tree, facts: RequestFacts, at_s: float) -> Iterator[Event]:
    for cause, waited_s in facts.waits_s.items():
        if waited_s > 0:
            yield tree.event(names.WAITED, at_s, {names.CAUSE: str(cause), names.SECONDS: waited_s})


def _breaks(tree: _Tree, facts: RequestFacts, at_s: float) -> Iterator[Event]:
    for one in facts.preemptions:
        yield tree.event(names.PREEMPTED, one.at_s, {names.CAUSE: str(one.cause)})
        if one.resumed_s is not None:
            yield tree.event(names.RESUMED, one.resumed_s)
    for cause, rested_s in facts.rests_s.items():
        if rested_s > 0:
            yield tree.event(names.RESTED, at_s, {names.CAUSE: str(cause), names.SECONDS: rested_s})
