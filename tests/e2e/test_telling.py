"""What a running server tells of its requests: whole traces, a line each, and nothing they said."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from gateway.domain.timeline import MAX_CONTENT_CHARS
from tests.mixed_requests import CANARY
from tests.passable import passable_directory
from tests.told_server import HIDDEN, SHOWN, Told, told_of
from tests.trace_receiver import attributes, faults_of, receiving

NUM_REQUESTS = 51
ITEMS = 3


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    """A server after mixed requests and a batch, stopped."""
    with receiving() as receiver, passable_directory() as parent:
        yield told_of(parent / "data", receiver, NUM_REQUESTS, ITEMS)


def test_every_request_has_a_whole_tree(told: Told) -> None:
    """No span is an orphan, and phases sum to the whole, however the request ended."""
    traces = told.receiver.traces()
    faults = Counter(fault for trace in traces.values() for fault in faults_of(trace))
    assert not faults
    roots = [attributes(trace[0]) for trace in traces.values()]
    statuses = Counter(root.get("http.response.status_code") for root in roots)
    assert {200, 400, 401, 404, 429} <= set(statuses)
    # All that was answered, what was asked of the batch, its items, and who left before.
    asked = Counter(told.sender.statuses)
    assert statuses[401] == asked[401]
    assert statuses[429] == asked[429]
    assert statuses[400] >= asked[400]


def test_a_trace_explains_what_was_computed(told: Told) -> None:
    """It has the way of the request, and inside what computed where the scheduler spent time."""
    traces = [
        {span.name: attributes(span) for span in trace}
        for trace in told.receiver.traces().values()
        if attributes(trace[0]).get("sluice.outcome") == "completed"
    ]
    named = next(trace for trace in traces if "sluice.stream.write" in trace)
    [chat] = [name for name in named if name.startswith("chat ")]
    assert {"sluice.auth", "sluice.quota.reserve", "sluice.quota.settle", chat} <= set(named)
    assert {"engine.queue", "engine.prefill", "engine.decode"} <= set(named)
    assert named["sluice.quota.reserve"]["sluice.quota.decision"] == "held"
    assert named[chat]["gen_ai.usage.output_tokens"] > 0
    assert named["engine.prefill"]["sluice.prefill.chunks"] >= 1


def test_what_was_sent_back_says_so(told: Told) -> None:
    """Its trace is whole like any other's, and has an event for each time, with the cause."""
    events = [
        {event.name: attributes(event) for event in span.events}
        for trace in told.receiver.traces().values()
        for span in trace
        if span.name == "engine.decode" and attributes(span)["sluice.preemptions"]
    ]
    assert events
    for named in events:
        assert named["sluice.sched.preempted"]["sluice.cause"] == "band"
        assert "sluice.sched.resumed" in named


def test_items_of_batches_are_linked_to_the_request_that_made_them(told: Told) -> None:
    """Each item is a trace of its own, whose link leads to the trace of its batch's making."""
    traces = told.receiver.traces()
    items = [trace[0] for trace in traces.values() if trace[0].name == "batch.item"]
    assert len(items) == ITEMS
    for item in items:
        [link] = item.links
        made = traces[link.trace_id][0]
        assert made.name == "POST /v1/batches"
        assert made.span_id == link.span_id
        assert attributes(item)["sluice.batch.id"].replace("-", "") in told.batch_id


def test_a_clients_trace_is_linked_not_continued(told: Told) -> None:
    """What a client names as its parent is a link, and what is malformed is none."""
    roots = [trace[0] for trace in told.receiver.traces().values()]
    links = [link for root in roots if root.name != "batch.item" for link in root.links]
    assert len(links) == 3
    assert all(int.from_bytes(link.trace_id, "big") < NUM_REQUESTS + 1 for link in links)
    assert not any(root.trace_state for root in roots)


def test_every_request_with_a_key_has_a_line(told: Told) -> None:
    """The log's line of a request has its ids, its numbers and how it ended."""
    traces = told.receiver.traces()
    lines = {line["trace_id"]: line for line in told.lines}
    assert len(lines) == len(traces)
    for trace_id, trace in traces.items():
        line, root = lines[trace_id.hex()], attributes(trace[0])
        assert line["request_id"] == root["sluice.request.id"]
        assert line.get("tenant_id") == root.get("sluice.tenant.id")
        assert line.get("code") == root.get("error.type")
    refused = [line for line in lines.values() if line.get("limit")]
    assert {line["limit"] for line in refused} == {"tenant.rpm"}


def test_nothing_that_was_sent_is_told(told: Told) -> None:
    """Marked text in every field that a client has is in no trace, log or metric."""
    assert CANARY.encode().lower() not in b"".join(told.receiver.raw).lower()
    assert CANARY.lower() not in told.log.lower()
    assert CANARY.lower() not in told.metrics.lower()
    # Nor is a key, whoever's.
    assert not re.search(r"sk-sluice|slk_|Bearer", told.log)


def test_a_prompt_is_shown_where_that_is_switched_on(told: Told) -> None:
    """By the trace of a tenant's request, its beginning alone; by no other, and by no log."""
    shown = [
        attributes(span)
        for trace in told.receiver.traces().values()
        for span in trace
        if "gen_ai.input.messages" in attributes(span)
    ]
    [said] = shown
    [message] = json.loads(said["gen_ai.input.messages"])
    assert message["role"] == "user"
    assert message["parts"][0]["content"].startswith(SHOWN)
    assert len(message["parts"][0]["content"]) == MAX_CONTENT_CHARS
    [answered] = json.loads(said["gen_ai.output.messages"])
    assert answered["role"] == "assistant"
    assert answered["parts"][0]["content"]
    assert HIDDEN.encode() not in b"".join(told.receiver.raw)
    assert not any(mark in text for mark in (SHOWN, HIDDEN) for text in (told.log, told.metrics))


def test_the_receiver_knows_who_sent(told: Told) -> None:
    """The resource has the service's name and what the environment adds."""
    [resource] = {tuple(sorted(one.items())) for one in told.receiver.resources}
    assert dict(resource)["service.name"] == "sluice"
    assert dict(resource)["deployment.environment.name"] == "test"
