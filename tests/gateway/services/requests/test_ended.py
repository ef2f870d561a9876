"""Who is told that a request has ended, and when."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.domain.timeline import MAX_REMARKS, Timeline
from gateway.services.requests import EndedRequests
from scheduler.facts import RequestFacts

pytestmark = pytest.mark.anyio

FACTS = RequestFacts(queued_s=1, num_ahead=0, admitted_s=1, first_token_s=2, ended_s=3)


class Running:
    """A generation whose end the test decides."""

    facts: RequestFacts | None = None
    is_over = False

    def end(self) -> None:
        self.facts, self.is_over = FACTS, True


def over(*generations: Running) -> Timeline:
    """A request that ended just now."""
    now_s = asyncio.get_running_loop().time()
    timeline = Timeline("aa" * 16, now_s, 0, generations=generations)
    timeline.end(now_s)
    return timeline


async def test_a_listener_that_raises_is_logged_once_and_keeps_nothing_from_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others hear of every request, and the log has one line."""
    told: list[Timeline] = []
    ended = EndedRequests()

    def broken(timeline: Timeline) -> None:
        raise ValueError("broken")

    ended.add(broken)
    ended.add(told.append)
    with caplog.at_level(logging.ERROR):
        ended.tell(over())
        ended.tell(over())
    assert len(told) == 2
    assert len(caplog.records) == 1


async def test_it_waits_for_what_the_scheduler_says() -> None:
    """A request whose generation still ends is told of once, with its facts, when it has."""
    told: list[Timeline] = []
    ended, running = EndedRequests(), Running()
    ended.add(told.append)
    timeline = over(running)
    ended.tell(timeline)
    assert not told
    assert ended.num_waiting == 1
    running.end()
    await asyncio.sleep(0.12)
    assert told == [timeline]
    assert (timeline.facts, timeline.generations, ended.num_waiting) == ((FACTS,), (), 0)
    ended.flush()
    assert told == [timeline]


async def test_it_does_not_wait_for_ever() -> None:
    """One that the scheduler never ends is told of without facts, after a while or at the end."""
    told: list[Timeline] = []
    ended = EndedRequests(patience_s=0.0)
    ended.add(told.append)
    ended.tell(over(Running()))
    await asyncio.sleep(0.12)
    ended.tell(over(Running()))
    ended.flush()
    assert [timeline.facts for timeline in told] == [(), ()]


async def test_few_wait() -> None:
    """Beyond the bound a request is told of at once: none are kept for their sake."""
    told: list[Timeline] = []
    ended = EndedRequests(max_waiting=1)
    ended.add(told.append)
    ended.tell(over(Running()))
    ended.tell(over(Running()))
    assert (len(told), ended.num_waiting) == (1, 1)
    ended.flush()


async def test_phases_tile_a_request() -> None:
    """What took nothing is counted with what follows; the phases sum to the whole."""
    timeline = Timeline("aa" * 16, 10.0, 0)
    timeline.enter("a", 10.0)
    timeline.enter("nothing", 10.5)
    timeline.enter("b", 10.50001)
    timeline.note("seen", True)
    timeline.end(11.0)
    timeline.end(12.0)
    spans = [(phase.name, phase.begin_s, phase.end_s) for phase in timeline.phases]
    assert spans == [("a", 10.0, 10.5), ("b", 10.5, 11.0)]
    assert (timeline.phases[1].detail, timeline.ended_s) == ({"seen": True}, 11.0)


async def test_remarks_are_bounded() -> None:
    """However often a request is extended, its timeline stays small."""
    timeline = Timeline("aa" * 16, 10.0, 0)
    for at in range(1000):
        timeline.remark("extended", float(at))
    assert len(timeline.remarks) == MAX_REMARKS
