"""The way to the counters, over counters that fail and forget as a test says."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.domain.counters import (
    Done,
    Failed,
    Found,
    Look,
    Settle,
    Waiting,
)
from gateway.domain.limits import Amounts
from gateway.errors import CountersUnavailable, InternalFailure
from tests.gateway.services.quotas.scripted import BUILD_S, LOOK, Rig, until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[True, False], ids=["connected", "not connected"])
async def rig(request: pytest.FixtureRequest) -> Rig:
    """Build a rig inside the test's loop."""
    rig = Rig()
    rig.counters.is_connected = request.param
    return rig


async def test_the_breaker_opens_after_five_failures(rig: Rig) -> None:
    """The sixth call is refused without one to the counters, and a metric says so."""
    rig.counters.num_failures = 5
    for number in range(5):
        assert not rig.link.is_open
        assert rig.metric("sluice_quota_degraded") == 0, number
        with pytest.raises(CountersUnavailable):
            await rig.link.ask(LOOK)
    assert rig.link.is_open
    assert rig.metric("sluice_quota_degraded") == 1
    with pytest.raises(CountersUnavailable):
        await rig.link.ask(LOOK)
    assert len(rig.counters.calls) == 5


async def test_failures_that_are_not_in_a_row_open_nothing(rig: Rig) -> None:
    """An answer between them begins the count anew."""
    for _ in range(3):
        rig.counters.num_failures = 4
        for _ in range(4):
            with pytest.raises(CountersUnavailable):
                await rig.link.ask(LOOK)
        await rig.link.ask(LOOK)
    assert not rig.link.is_open


async def test_a_probe_that_is_answered_closes_the_breaker(rig: Rig) -> None:
    """One that is not leaves it open."""
    await rig.open_breaker()
    rig.counters.num_failures = 1
    with pytest.raises(CountersUnavailable):
        await rig.link.probe()
    assert rig.link.is_open
    await rig.link.probe()
    assert not rig.link.is_open
    assert rig.metric("sluice_quota_degraded") == 0
    await rig.link.ask(LOOK)


async def test_what_is_posted_rides_in_front_and_learns_its_own_answer(rig: Rig) -> None:
    """No more than fifty ride along; the rest goes by itself, shortly, in its order."""
    told: list[object] = []
    rig.counters.answers[Settle] = lambda op: Waiting([op.request_id])
    for number in range(60):
        rig.link.post(settle(number), lambda answer: told.append(answer.request_ids[0]))
    [answer] = await rig.link.ask(LOOK)
    assert answer == Done()
    assert [type(op) for op in rig.counters.calls[0]] == [Settle] * 50 + [Look]
    assert told == [str(number) for number in range(50)]
    await until(lambda: len(told) == 60)
    assert told == [str(number) for number in range(60)]
    assert len(rig.counters.calls) == 2


async def test_riders_keep_their_place_however_calls_fail(rig: Rig) -> None:
    """Two calls that fail together put back what they took along, the first of them first."""
    for number in range(60):
        rig.link.post(settle(number))
    rig.counters.num_failures = 2
    rig.counters.gate.clear()
    calls = [asyncio.create_task(rig.link.ask(LOOK)) for _ in range(2)]
    await until(lambda: len(rig.counters.calls) == 2)
    for number in range(60, 70):
        rig.link.post(settle(number))
    rig.counters.gate.set()
    await asyncio.gather(*calls, return_exceptions=True)
    assert rig.link.num_posted == 70
    rig.counters.calls.clear()
    await rig.link.flush()
    assert [op.request_id for op in rig.counters.asked(Settle)] == [str(n) for n in range(70)]
    assert rig.link.num_posted == 0


async def test_a_call_that_is_cancelled_loses_no_rider(rig: Rig) -> None:
    """Nobody knows whether they were done, so they go again."""
    rig.link.post(settle("a"))
    rig.counters.gate.clear()
    call = asyncio.create_task(rig.link.ask(LOOK))
    await until(lambda: bool(rig.counters.calls))
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    rig.counters.gate.set()
    await rig.link.flush()
    assert rig.counters.asked(Settle) == [settle("a")] * 2


async def test_a_probe_brings_what_waited(rig: Rig) -> None:
    """While the breaker is open nothing is sent, however much is posted."""
    await rig.open_breaker()
    rig.counters.calls.clear()
    for number in range(3):
        rig.link.post(settle(number))
    await asyncio.sleep(0.05)
    assert rig.counters.calls == []
    await rig.link.probe()
    assert [op.request_id for op in rig.counters.asked(Settle)] == ["0", "1", "2"]


async def test_an_operation_that_goes_wrong_takes_no_other_with_it(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """A rider's error is logged; an error of what was asked for is raised."""
    told: list[object] = []
    rig.counters.answers[Settle] = lambda op: Failed("a bug") if op.request_id == "1" else Done()
    for number in range(3):
        rig.link.post(settle(number), told.append)
    with caplog.at_level(logging.ERROR):
        await rig.link.ask(LOOK)
    assert len(told) == 2
    assert caplog.text.count("could not do Settle") == 1
    rig.counters.answers[Look] = lambda op: Failed("a bug")
    with pytest.raises(InternalFailure):
        await rig.link.ask(LOOK)


async def test_counters_that_forgot_are_founded_anew_and_told_of_once(rig: Rig) -> None:
    """What was asked is asked again; the first life that is met is no change."""
    changes: list[None] = []
    rig.link.on_epoch = lambda: changes.append(None)
    await rig.link.ask(LOOK)
    assert changes == []
    rig.counters.forget()
    rig.link.post(settle("a"))
    assert await rig.link.ask(LOOK) == [Done()]
    [found] = rig.counters.asked(Found)
    assert found.build_us == BUILD_S * 1_000_000
    for _ in range(3):
        await rig.link.ask(LOOK)
    assert len(changes) == 1
    assert [type(op) for op in rig.counters.calls[-4]] == [Settle, Look]


async def test_who_founds_counters_says_how_many_gateways_there_were(rig: Rig) -> None:
    """So that these are waited for, where there were others."""
    await rig.link.ask(LOOK)
    for num_gateways, wait_us in ((1, 0), (3, 30_000_000)):
        rig.link.num_gateways = num_gateways
        rig.counters.forget()
        await rig.link.ask(LOOK)
        found = rig.counters.asked(Found)[-1]
        assert (found.num_gateways, found.wait_us) == (num_gateways, wait_us)


async def test_counters_that_another_process_founded_are_a_new_life_too(rig: Rig) -> None:
    """Nothing is founded then."""
    changes: list[None] = []
    rig.link.on_epoch = lambda: changes.append(None)
    await rig.link.ask(LOOK)
    rig.counters.epoch = "another's"
    await rig.link.ask(LOOK)
    assert len(changes) == 1
    assert rig.counters.asked(Found) == []


async def test_the_time_is_the_counters(rig: Rig) -> None:
    """A process whose clock is wrong goes by theirs, as it was told last."""
    truth_s = rig.clock.now_s
    rig.counters.clock = type(rig.clock)()
    rig.clock.now_s += 1000
    assert rig.link.now_s() == pytest.approx(truth_s + 1000)
    await rig.link.ask(LOOK)
    assert rig.link.now_s() == pytest.approx(truth_s)
    rig.clock.now_s += 5
    assert rig.link.now_s() == pytest.approx(truth_s + 5)
    assert rig.link.silent_s() == 5


def settle(name: object) -> Settle:
    """Settle a request of that name at nothing."""
    return Settle(str(name), Amounts())


async def test_what_is_asked_in_one_turn_is_one_call(rig: Rig) -> None:
    """No more than 32 go together; each learns its own answer."""
    rig.counters.answers[Settle] = lambda op: Waiting([op.request_id])
    rig.link.post(settle("before"))
    answers = await asyncio.gather(*(rig.link.join(settle(number)) for number in range(40)))
    assert answers == [Waiting([str(number)]) for number in range(40)]
    assert rig.counters.calls == [
        [settle("before"), *(settle(number) for number in range(32))],
        [settle(number) for number in range(32, 40)],
    ]


async def test_a_turn_waits_for_no_answer_to_the_one_before(rig: Rig) -> None:
    """Who asks next is in the next call, whoever is still unanswered."""
    rig.counters.gate.clear()
    asked = []
    for number in range(3):
        asked.append(asyncio.create_task(rig.link.join(settle(number))))
        for _ in range(2 if rig.counters.is_connected else 3):
            await asyncio.sleep(0)
        assert rig.counters.calls == [[settle(before)] for before in range(number + 1)]
    rig.counters.gate.set()
    await asyncio.gather(*asked)


async def test_one_of_many_that_goes_wrong_goes_wrong_alone(rig: Rig) -> None:
    """Whether the counters say so of it, or the call comes to nothing because of it."""
    rig.counters.answers[Settle] = lambda op: Failed("bad")
    asked = (rig.link.join(op) for op in (settle("a"), LOOK))
    error, good = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(error, InternalFailure)
    assert good == Done()

    def refuse(op: object) -> Done:
        raise ValueError("no such operation")

    rig.counters.answers[Settle] = refuse
    asked = (rig.link.join(op) for op in (settle("a"), LOOK))
    error, good = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(error, InternalFailure)
    assert "no such operation" in str(error)
    assert good == Done()


async def test_a_call_of_many_that_fails_is_as_many_failures(rig: Rig) -> None:
    """Five requests that get no answer open the breaker, together or one after another."""
    rig.counters.num_failures = 1
    failed = await asyncio.gather(*(rig.link.join(LOOK) for _ in range(4)), return_exceptions=True)
    assert [type(error) for error in failed] == [CountersUnavailable] * 4
    assert len({id(error) for error in failed}) == 4
    assert not rig.link.is_open
    rig.counters.num_failures = 1
    with pytest.raises(CountersUnavailable):
        await rig.link.join(LOOK)
    for _ in range(2):
        with pytest.raises(CountersUnavailable):
            await rig.link.join(LOOK)
        assert len(rig.counters.calls) == 2


async def test_who_leaves_before_the_call_is_not_in_it(rig: Rig) -> None:
    """What undoes it would go in front of it, and it would be held for nobody."""
    left, stays = (asyncio.create_task(rig.link.join(settle(name))) for name in ("left", "stays"))
    await asyncio.sleep(0)  # both have asked, and the call comes behind
    left.cancel()
    await stays
    assert rig.counters.calls == [[settle("stays")]]
    assert left.cancelled()


async def test_counters_that_are_empty_are_founded_for_a_call_of_many(rig: Rig) -> None:
    """What rode along is done once, in front, and nobody learns of it."""
    rig.counters.epoch = None
    told: list[object] = []
    rig.counters.answers[Settle] = lambda op: Waiting([op.request_id])
    rig.link.post(settle("before"), told.append)
    answers = await asyncio.gather(*(rig.link.join(settle(name)) for name in "ab"))
    assert answers == [Waiting(["a"]), Waiting(["b"])]
    assert told == [Waiting(["before"])]
    assert rig.counters.calls[-1] == [settle("before"), settle("a"), settle("b")]


async def test_who_rides_with_a_call_of_many_that_fails_rides_with_the_next(rig: Rig) -> None:
    """In its place."""
    rig.counters.num_failures = 1
    rig.link.post(settle("before"))
    with pytest.raises(CountersUnavailable):
        await rig.link.join(settle("a"))
    rig.link.post(settle("later"))
    await rig.link.join(settle("b"))
    assert rig.counters.calls[-1] == [settle("before"), settle("later"), settle("b")]


async def test_a_rider_that_cannot_bear_its_answer_leaves_nobody_waiting(rig: Rig) -> None:
    """Those who asked are answered by a call of their own each."""

    def fail(answer: object) -> None:
        raise ValueError("not what was expected")

    rig.link.post(settle("before"), fail)
    assert await asyncio.gather(*(rig.link.join(LOOK) for _ in range(2))) == [Done()] * 2


async def test_a_call_that_cannot_be_spelled_leaves_nobody_waiting(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many each is asked for by itself, and who is to blame is told; riders ride on."""

    def refuse(ops: object, on_reply: object) -> bool:
        raise ValueError("no such operation")

    monkeypatch.setattr(rig.counters, "begin", refuse)
    rig.link.post(settle("before"))
    assert await asyncio.gather(*(rig.link.join(LOOK) for _ in range(2))) == [Done()] * 2
    assert rig.counters.calls == [[settle("before"), LOOK], [LOOK]]
    with pytest.raises(InternalFailure, match="no such operation"):
        await rig.link.join(LOOK)
