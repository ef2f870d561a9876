"""The line that a request has in the log."""

from __future__ import annotations

import io
import json
from typing import Any
from uuid import UUID

from gateway.domain.timeline import Timeline
from gateway.telemetry.request_log import RequestLog

TENANT = UUID(int=1)


def over(status: int = 200, tenant_id: UUID | None = TENANT, **more: Any) -> Timeline:
    timeline = Timeline("ab" * 16, 10.0, 1_700_000_000_000_000_000, method="GET", route="/v1/x")
    timeline.status, timeline.tenant_id = status, tenant_id
    for name, value in more.items():
        setattr(timeline, name, value)
    timeline.end(10.25)
    return timeline


def lines_of(*timelines: Timeline, form: Any = "json", **more: Any) -> list[str]:
    stream = io.StringIO()
    log = RequestLog(form, stream=stream, **more)
    for timeline in timelines:
        log.add(timeline)
    log.start()
    log.close()
    return stream.getvalue().splitlines()


def test_a_line_is_json_or_for_people() -> None:
    """Both say the same; what is empty is left out, and the trace where there is none."""
    timeline = over(output_tokens=3, is_stream=True, first_token_s=10.1)
    [line] = lines_of(timeline, cause=lambda timeline: "queue")
    assert json.loads(line) == {
        "at": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "event": "request",
        "request_id": f"req_{'ab' * 16}",
        "status": 200,
        "method": "GET",
        "route": "/v1/x",
        "tenant_id": str(TENANT),
        "stream": True,
        "output_tokens": 3,
        "took_ms": 250.0,
        "ttft_ms": 100.0,
        "cause": "queue",
    }
    [line] = lines_of(timeline, form="human")
    assert line == (
        f"2023-11-14T22:13:20.250Z 200 GET /v1/x req_{'ab' * 16} tenant_id={TENANT} stream=yes "
        "output_tokens=3 took_ms=250.0 ttft_ms=100.0"
    )


def test_probes_have_no_line() -> None:
    """What anybody may ask, and got, is no news; what nobody may is."""
    assert not lines_of(over(tenant_id=None))
    assert len(lines_of(over(401, tenant_id=None))) == 1


def test_refusals_do_not_fill_the_disk() -> None:
    """Of thousands some have lines, the next one says how many had none, and answers have all."""
    lines = lines_of(*(over(429) for _ in range(5000)), over(), over(429, UUID(int=2)))
    documents = [json.loads(line) for line in lines]
    assert len(documents) < 200
    assert sum(one.get("left_out", 0) for one in documents) == 5002 - len(documents)
    assert {one.get("tenant_id") for one in documents} == {str(TENANT), str(UUID(int=2))}


def test_a_log_that_nobody_reads_is_bounded() -> None:
    """Beyond a tenant's quarter its lines are dropped and counted, and others' have room."""
    stream = io.StringIO()
    log = RequestLog("json", stream=stream, max_waiting=12)
    for _ in range(100):
        log.add(over())
    assert log.num_dropped == 97
    log.add(over(tenant_id=UUID(int=2)))
    assert log.num_dropped == 97
    log.start()
    log.close()
    assert len(stream.getvalue().splitlines()) == 4


def test_a_log_that_was_closed_harms_nobody() -> None:
    """A stream that takes no more is given up line by line."""
    stream = io.StringIO()
    stream.close()
    log = RequestLog("human", stream=stream)
    log.add(over())
    log.start()
    log.close()
    assert log.num_dropped == 1


def test_what_is_our_fault_is_an_error() -> None:
    """From 500 on, and nothing below."""
    levels = [json.loads(line)["level"] for line in lines_of(over(499), over(500), over(503))]
    assert levels == ["info", "error", "error"]
