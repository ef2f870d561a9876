"""The service: its thread, its lock, its faults, and one hand-back a step."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import fakes
from engine.kv import table
from engine.kv.prefix import extend_chain
from fakes import ManualClock, StepwiseEngine
from scheduler.config import PRESETS, first_come
from scheduler.core import Scheduler
from scheduler.errors import Rejected
from scheduler.request import FinishReason, RejectCode, Sender
from scheduler.service import EngineService
from scheduler.stream import StreamDelta, TokenStream

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(
    engine: StepwiseEngine,
    *,
    clock: Callable[[], float] = time.monotonic,
    max_num_queued: int = 100,
) -> AsyncIterator[EngineService]:
    scheduler = Scheduler(engine.info, first_come(max_num_queued=max_num_queued))
    service = EngineService(scheduler, engine, clock=clock)
    service.start()
    try:
        yield service
    finally:
        engine.gate.set()
        await asyncio.to_thread(service.stop)


async def read_all(stream: TokenStream) -> tuple[list[int], StreamDelta]:
    token_ids: list[int] = []
    async for delta in stream:
        token_ids += delta.token_ids
    return token_ids, delta


async def until(condition: Callable[[], bool]) -> None:
    """Give the engine thread time until something holds; fail after ten seconds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("depth", [1, 2])
async def test_streams_are_complete(depth: int) -> None:
    """Many requests at once each get the tokens that they would get alone."""
    engine = StepwiseEngine(fakes.make_engine(depth=depth, num_blocks=20))
    requests = [fakes.make_request(f"r{i}", seed=i, max_tokens=i + 1) for i in range(20)]
    async with serving(engine) as service:
        ends = await asyncio.gather(*(read_all(service.submit(r)) for r in requests))
        snapshot = service.snapshot()
    for request, (token_ids, last) in zip(requests, ends, strict=True):
        expected = fakes.expected_tokens(request, engine.info)
        assert (token_ids, last.finish_reason) == expected
        assert last.num_output_tokens == len(token_ids)
    assert (snapshot.running, snapshot.free_blocks) == (0, 20)


class KnownCondition(threading.Condition):
    """Know which thread is within it."""

    holder: int | None = None

    def __enter__(self) -> bool:
        taken = super().__enter__()
        self.holder = threading.get_ident()
        return taken

    def __exit__(self, *exc: object) -> None:
        self.holder = None
        super().__exit__(*exc)  # type: ignore[arg-type]


async def test_no_prompt_is_hashed_while_the_lock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step does not wait for the length of a prompt, whether it is taken in or refused."""
    engine = StepwiseEngine(fakes.make_engine(num_blocks=64))
    service = EngineService(Scheduler(engine.info, PRESETS["mixed"]), engine, clock=ManualClock())
    service._wake = lock = KnownCondition()
    hashed: dict[bool, int] = {True: 0, False: 0}

    def counting(chain: list[bytes], *args: object, **options: int) -> None:
        before = len(chain)
        extend_chain(chain, *args, **options)  # type: ignore[arg-type]
        hashed[lock.holder == threading.get_ident()] += len(chain) - before

    monkeypatch.setattr(table, "extend_chain", counting)
    service.start()
    try:
        service.submit(fakes.make_request("r", prompt=range(40)))
        with pytest.raises(Rejected):
            service.submit(fakes.make_request("late", prompt=range(40), expires_s=-1.0))
    finally:
        engine.gate.set()
        await asyncio.to_thread(service.stop)
    assert hashed == {True: 0, False: 20}


async def test_outputs_cross_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a step has, its outputs reach the loop in one call."""
    engine = StepwiseEngine(fakes.make_engine())
    calls = 0
    loop = asyncio.get_running_loop()
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counting(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        nonlocal calls
        calls += getattr(callback, "__name__", "") == "_deliver_turn"
        return call_soon_threadsafe(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    async with serving(engine) as service:
        engine.gate.clear()
        streams = [service.submit(fakes.make_request(f"r{i}", max_tokens=6)) for i in range(4)]
        engine.gate.set()
        await asyncio.gather(*(read_all(stream) for stream in streams))
        assert 6 <= calls <= len(engine.plans) <= 12


async def test_a_stream_that_is_cancelled_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its request came to before that is not lost where it was still on its way."""
    engine = StepwiseEngine(fakes.make_engine())
    loop, posted = asyncio.get_running_loop(), asyncio.Event()
    held: list[Callable[[], object]] = []

    def hold(callback: Callable[..., object], *args: object) -> None:
        held.append(lambda: callback(*args))
        call_soon_threadsafe(posted.set)

    call_soon_threadsafe = loop.call_soon_threadsafe
    async with serving(engine) as service:
        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon_threadsafe", hold)
            stream = service.submit(fakes.make_request(max_tokens=1))
            await posted.wait()
            stream.cancel()
        assert stream.finish_reason is FinishReason.LENGTH
        assert (stream.num_output_tokens, stream.num_prefilled_tokens) == (1, 3)
        for deliver in held:
            deliver()
        token_ids, last = await read_all(stream)
        assert (len(token_ids), last.finish_reason) == (1, FinishReason.LENGTH)


async def test_refusal_does_not_wait_for_a_step() -> None:
    """While a step runs a request beyond the queue is refused and another is cancelled."""
    engine = StepwiseEngine(fakes.make_engine(max_num_seqs=1))
    async with serving(engine, max_num_queued=1) as service:
        engine.gate.clear()
        running = service.submit(fakes.make_request("running", max_tokens=40))
        await until(lambda: service.snapshot().running == 1)
        service.submit(fakes.make_request("queued"))
        with pytest.raises(Rejected) as refusal:
            service.submit(fakes.make_request("refused"))
        assert refusal.value.code is RejectCode.OVERLOADED
        assert refusal.value.retry_after_s == pytest.approx(1.0, abs=0.2)
        running.cancel()
        snapshot = service.snapshot()
        assert (snapshot.running, snapshot.queued, snapshot.free_blocks) == (0, 1, 32)
        assert (await running.next()).finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize("depth", [1, 2])
async def test_cancel_in_the_middle_leaves_others_alone(depth: int) -> None:
    """A stream that is cancelled between two tokens ends; its neighbour is complete."""
    engine = StepwiseEngine(fakes.make_engine(depth=depth, max_model_len=40_000, num_blocks=20_000))
    # Steps that take no time leave the lock to nobody else, for all of a stream.
    engine.engine._sleep = lambda step_s: time.sleep(1e-4)
    neighbour = fakes.make_request("neighbour", max_tokens=60)
    async with serving(engine) as service:
        leaver = service.submit(fakes.make_request("leaver", max_tokens=39_000))
        stream = service.submit(neighbour)
        await leaver.next()
        leaver.cancel()
        leaver.cancel()
        _, last = await read_all(leaver)
        assert last.finish_reason is FinishReason.CANCELLED
        token_ids, _ = await read_all(stream)
        assert token_ids == fakes.expected_tokens(neighbour, engine.info)[0]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", ["failing_launches", "failing_collects"])
async def test_failed_step_ends_its_rows_and_the_service_lives(
    depth: int, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that raises ends its rows with an error, is logged, and the next request is served."""
    engine = StepwiseEngine(fakes.make_engine(depth=depth, max_num_seqs=1))
    setattr(engine, where, 1)
    survivor = fakes.make_request("survivor", arrival_s=1e12)
    async with serving(engine) as service:
        doomed = service.submit(fakes.make_request("doomed", max_tokens=40))
        stream = service.submit(survivor)
        _, last = await read_all(doomed)
        assert last.finish_reason is FinishReason.ERROR
        assert last.error is not None
        assert last.error.startswith("RuntimeError: the ")
        token_ids, _ = await read_all(stream)
        assert token_ids == fakes.expected_tokens(survivor, engine.info)[0]
        assert service.healthy
    assert engine.num_resets == 1
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info is not None


async def test_engine_that_cannot_be_reset_ends_everything() -> None:
    """When the reset fails as well, all streams end and requests are refused."""
    engine = StepwiseEngine(fakes.make_engine(max_num_seqs=1))
    engine.failing_collects, engine.failing_reset = 1, True
    async with serving(engine) as service:
        engine.gate.clear()
        streams = [service.submit(fakes.make_request(f"r{i}")) for i in range(3)]
        engine.gate.set()
        ends = await asyncio.gather(*(read_all(stream) for stream in streams))
        assert {last.finish_reason for _, last in ends} == {FinishReason.ERROR}
        assert not service.healthy
        with pytest.raises(Rejected) as refusal:
            service.submit(fakes.make_request("late"))
        assert refusal.value.code is RejectCode.UNAVAILABLE
        streams[0].cancel()


async def test_broken_scheduler_ends_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the scheduler ends all streams and is told, rather than leaving them to hang."""
    engine = StepwiseEngine(fakes.make_engine())

    def broken(self: Scheduler, now: float) -> None:
        raise AssertionError("a bug")

    async with serving(engine) as service:
        monkeypatch.setattr(Scheduler, "plan", broken)
        _, last = await read_all(service.submit(fakes.make_request()))
        assert last.finish_reason is FinishReason.ERROR
        assert not service.healthy


@pytest.mark.parametrize("depth", [1, 2])
async def test_stop_ends_streams(depth: int) -> None:
    """Stopping ends running and waiting streams, refuses new ones and joins the thread."""
    engine = StepwiseEngine(fakes.make_engine(depth=depth, max_num_seqs=1))
    async with serving(engine) as service:
        engine.gate.clear()
        streams = [service.submit(fakes.make_request(f"r{i}", max_tokens=40)) for i in range(2)]
        await until(lambda: service.snapshot().running == 1)
        stopping = asyncio.ensure_future(asyncio.to_thread(service.stop))
        await until(lambda: not service.healthy)
        engine.gate.set()
        await stopping
        ends = await asyncio.gather(*(read_all(stream) for stream in streams))
        assert {last.finish_reason for _, last in ends} == {FinishReason.ERROR}
        with pytest.raises(Rejected):
            service.submit(fakes.make_request("late"))
        assert service.snapshot().free_blocks == 32
        service.stop()


async def test_idle_service_stops_and_plans_nothing() -> None:
    """Without requests no step is launched, progress is current, and stopping works."""
    clock = ManualClock(5.0)
    engine = StepwiseEngine(fakes.make_engine())
    async with serving(engine, clock=clock) as service:
        await until(lambda: service._idle)
        clock.now = 500.0
        assert service.last_progress_s == 500.0
        assert service.healthy
    assert engine.plans == []
    assert not service.healthy


async def test_hung_step_shows_as_no_progress() -> None:
    """While a step does not come back the time of the last progress stands still."""
    clock = ManualClock(5.0)
    engine = StepwiseEngine(fakes.make_engine())
    async with serving(engine, clock=clock) as service:
        engine.gate.clear()
        stream = service.submit(fakes.make_request())
        await until(lambda: bool(engine.plans))
        clock.now = 500.0
        assert service.last_progress_s == 5.0
        engine.gate.set()
        await read_all(stream)
        assert service.last_progress_s == 500.0


async def test_grants_are_answered_through_the_service() -> None:
    """A paused stream goes on when its grant is extended and ends where that is denied."""
    engine = StepwiseEngine(fakes.make_engine())
    async with serving(engine) as service:
        stream = service.submit(fakes.make_request(max_tokens=20, granted_tokens=2))
        count = 0
        while count < 2:
            count = (await stream.next()).num_output_tokens
        service.extend("r", 5)
        while count < 5:
            delta = await stream.next()
            count = delta.num_output_tokens
        assert delta.finish_reason is None
        service.finish_granted("r")
        last = await stream.next()
        assert (last.finish_reason, last.num_output_tokens) == (FinishReason.LENGTH, 5)


def test_thread_ends_with_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that was closed without stopping the service does not leave its thread failing."""
    engine = StepwiseEngine(fakes.make_engine())
    service = EngineService(Scheduler(engine.info, first_come()), engine)

    async def leave_early() -> None:
        engine.gate.clear()
        service.start()
        service.submit(fakes.make_request(max_tokens=40))

    asyncio.run(leave_early())
    engine.gate.set()
    service.stop()
    assert not service.healthy
    assert caplog.records == []


async def test_what_comes_together_is_begun_together() -> None:
    """Requests that the loop has ready are in the first step, however long each takes to bring."""
    engine = StepwiseEngine(fakes.make_engine())
    async with serving(engine) as service:
        await until(lambda: service._idle)
        streams = [service.submit(fakes.make_request("first", max_tokens=1))]

        def bring(name: str) -> None:
            time.sleep(0.01)
            streams.append(service.submit(fakes.make_request(name, max_tokens=1)))

        for number in range(3):
            asyncio.get_running_loop().call_soon(bring, f"r{number}")
        await asyncio.sleep(0)
        await asyncio.gather(*(read_all(stream) for stream in streams))
        assert (len(streams), service.snapshot().num_steps) == (4, 1)


async def test_a_sleeping_engine_is_woken_each_time() -> None:
    """By a request, by a cancellation and by a command, one after the other."""
    engine = StepwiseEngine(fakes.make_engine())
    engine.gate.set()
    async with serving(engine) as service:
        for number in range(3):
            await until(lambda: service._idle)
            stream = service.submit(fakes.make_request(f"r{number}", max_tokens=1))
            async with asyncio.timeout(5):
                await read_all(stream)
            await until(lambda: service._idle)
            service.configure(first_come())
            await until(lambda: not service._commands)


async def test_a_sender_is_told_of_room_before_it_begins() -> None:
    """Many requests at once are refused as one of them would be, and nothing of them is kept."""
    engine = StepwiseEngine(fakes.make_engine(max_num_seqs=2))
    async with serving(engine, max_num_queued=10) as service:
        sender = Sender(tenant_id="acme")
        service.check_room(sender, 11, 110)
        with pytest.raises(Rejected, match="nearly full, and 0 requests of your") as refused:
            service.check_room(sender, 12, 120)
        assert refused.value.code is RejectCode.TENANT_LIMITED
        with pytest.raises(Rejected, match="no room for 12 more: 0 requests wait"):
            service.check_room(sender, 14, 140)
        assert service.snapshot().queued == 0


async def test_who_waits_in_vain_is_told_while_the_service_sleeps() -> None:
    """Requests expire where a paused row has the only slot and nothing can be planned."""
    engine = StepwiseEngine(fakes.make_engine(max_num_seqs=1))
    scheduler = Scheduler(engine.info, PRESETS["mixed"])
    service = EngineService(scheduler, engine)
    service.start()
    try:
        service.submit(fakes.make_request("paused", granted_tokens=1, ignore_eos=True))
        await until(lambda: service.snapshot().running == 1 and service._idle)
        late = fakes.make_request("late", expires_s=time.monotonic() + 0.2)
        async with asyncio.timeout(10):
            _, last = await read_all(service.submit(late))
        assert last.finish_reason is FinishReason.EXPIRED
    finally:
        await asyncio.to_thread(service.stop)
