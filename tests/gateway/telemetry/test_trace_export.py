"""The thread that sends traces, and what it never costs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest

from gateway.domain.timeline import Content, Timeline
from gateway.telemetry.trace_export import TraceExport

TENANT, OTHER = UUID(int=1), UUID(int=2)


class Sender:
    """Take what it is sent, once `gate` is open, or say that it cannot."""

    def __init__(self) -> None:
        self.spans: list[object] = []
        self.gate = threading.Event()
        self.gate.set()
        self.takes = True
        self.is_closed = False

    def send(self, spans: Sequence[object]) -> bool:
        self.gate.wait(10)
        if self.takes:
            self.spans += spans
        return self.takes

    def close(self) -> None:
        self.is_closed = True


def over(tenant_id: UUID | None = TENANT, *, drawn: bool = True, sampled: bool = True) -> Timeline:
    timeline = Timeline("aa" * 16, 0.0, 0, tenant_id=tenant_id)
    timeline.end(1.0)
    timeline.is_drawn, timeline.is_sampled = drawn, sampled
    return timeline


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.gate.set()


def all_of(timelines: Sequence[Timeline]) -> tuple[Sequence[Timeline], int]:
    return timelines, len(timelines)


def export_to(sender: Sender, *, max_waiting: int = 16) -> TraceExport:
    export = TraceExport(all_of, sender, max_waiting=max_waiting, delay_s=0.01)
    export.start()
    return export


def test_what_is_sampled_is_sent_before_the_end(sender: Sender) -> None:
    """Closing sends what waits; what is not to be kept is not sent."""
    export = export_to(sender)
    export.add(over())
    export.add(over(sampled=False, drawn=False))
    export.close()
    assert len(sender.spans) == 1
    assert (export.num_sent, export.num_dropped, sender.is_closed) == (1, 0, True)


def test_a_receiver_that_hangs_costs_a_bounded_queue(sender: Sender) -> None:
    """Nobody waits, what does not fit is dropped and counted, and no tenant has all of the room."""
    sender.gate.clear()
    export = export_to(sender)
    export.add(over(OTHER))
    while export.num_waiting:
        time.sleep(0.001)
    began_s = time.process_time()
    for _ in range(10_000):
        export.add(over())
    assert time.process_time() - began_s < 5
    assert export.num_waiting == 4
    export.add(over(OTHER))
    assert (export.num_waiting, export.num_dropped) == (5, 9_996)
    began_s = time.monotonic()
    export.close(timeout_s=0.05)
    assert time.monotonic() - began_s < 5


def test_an_outage_is_logged_as_it_begins_and_ends(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """Two lines, however many requests it lasts for, which are dropped and counted."""
    sender.takes = False
    export = export_to(sender, max_waiting=1000)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            export.add(over())
            _until(lambda: not export.num_waiting)
        _until(lambda: export.num_dropped == 3)
        sender.takes = True
        export.add(over())
        _until(lambda: export.num_sent == 1)
    export.close()
    assert len(caplog.records) == 2


def test_a_trace_that_cannot_be_made_ends_nothing(sender: Sender) -> None:
    """A bug in making spans is counted as dropped, and those beside it are sent."""
    bad = over()

    def encode(timelines: Sequence[Timeline]) -> tuple[list[Timeline], int]:
        good = [timeline for timeline in timelines if timeline is not bad]
        if not good:
            raise ValueError("bad")
        return good, len(good)

    export = TraceExport(encode, sender, delay_s=60.0)
    export.start()
    for timeline in (over(), bad, over()):
        export.add(timeline)
    export.close()
    assert len(sender.spans) == 2
    assert (export.num_sent, export.num_dropped) == (2, 1)


def test_what_was_said_is_kept_for_no_longer_than_it_is_sent(sender: Sender) -> None:
    """Whoever else keeps a timeline does not keep a prompt, sent, dropped or never wanted."""
    sender.gate.clear()
    export = export_to(sender, max_waiting=4)
    told = [over(), over(sampled=False, drawn=False), *(over() for _ in range(5))]
    for timeline in told:
        timeline.content = Content([("user", "a secret")])
        export.add(timeline)
    assert told[1].content is None
    assert told[-1].content is None
    sender.gate.set()
    export.close()
    assert not any(timeline.content for timeline in told)


def test_what_is_kept_for_its_own_sake_is_bounded_a_tenant(sender: Sender) -> None:
    """A tenant that meets its limit all the time is shown some of it; others are not held back."""
    export = export_to(sender, max_waiting=100_000)
    told = [over(drawn=False) for _ in range(1000)]
    for timeline in told:
        export.add(timeline)
    export.add(over(OTHER, drawn=False))
    export.close()
    tenants = [timeline.tenant_id for timeline in sender.spans if isinstance(timeline, Timeline)]
    assert 50 <= tenants.count(TENANT) < 100
    assert tenants.count(OTHER) == 1
    assert export.num_left_out == 1000 - tenants.count(TENANT)
    assert sum(timeline.is_kept for timeline in told) == tenants.count(TENANT)


def _until(holds: object) -> None:
    assert callable(holds)
    until_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.001)
