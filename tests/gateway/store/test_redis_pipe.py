"""One connection to a real Valkey, through a proxy that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import hiredis
import pytest
from redis.exceptions import ResponseError

from gateway.store.redis import connect_for_pipe
from gateway.store.redis_pipe import PipeClosed, RedisPipe
from gateway.store.redis_wire import RedisWire
from tests.faults.proxy import Fault, FaultProxy

pytestmark = pytest.mark.anyio

# Long enough for a machine that does other things too, where a test does not wait for it.
PATIENCE_S = 10.0


@asynccontextmanager
async def piped(
    redis_url: str, *, timeout_s: float = PATIENCE_S
) -> AsyncIterator[tuple[FaultProxy, RedisPipe]]:
    """Open a pipe through a proxy."""
    async with (
        FaultProxy(unquote(urlsplit(redis_url).path), None) as proxy,
        _direct(proxy.redis_url(redis_url), timeout_s=timeout_s) as pipe,
    ):
        yield proxy, pipe


async def test_answers_go_to_those_who_asked(redis_url: str) -> None:
    """Calls that follow each other without waiting share one connection and keep their order."""
    async with piped(redis_url) as (proxy, pipe):
        answers = await asyncio.gather(*(pipe.call("ECHO", str(n)) for n in range(200)))
        assert answers == [str(n).encode() for n in range(200)]
        assert proxy.counts.accepted == 1


async def test_who_began_a_call_is_told_where_its_answer_is_read(redis_url: str) -> None:
    """In the order of all calls, and before those who wait for theirs come to run."""
    async with piped(redis_url) as (proxy, pipe):
        told: list[object] = []
        assert not pipe.begin(told.append, "ECHO", "unconnected")
        await pipe.call("PING")
        waiting = asyncio.create_task(pipe.call("ECHO", "1"))
        waiting.add_done_callback(lambda done: told.append(done.result()))
        await asyncio.sleep(0)
        assert pipe.begin(told.append, "ECHO", "2")
        assert pipe.begin(told.append, "NONSENSE")
        assert await pipe.call("ECHO", "3") == b"3"
        await asyncio.sleep(0)
        assert told[0] == b"2"
        assert isinstance(told[1], ResponseError)
        assert told[2:] == [b"1"]
        assert proxy.counts.accepted == 1


async def test_who_began_a_call_is_told_once_that_nothing_comes(redis_url: str) -> None:
    """After a silence, on a connection that goes with it, and at the end."""
    async with piped(redis_url, timeout_s=0.05) as (proxy, pipe):
        await _eventually(pipe, "warm")
        proxy.fault = Fault(blackhole=True)
        told: list[object] = []
        for _ in range(2):
            assert pipe.begin(told.append, "ECHO", "late")
        with pytest.raises(PipeClosed):
            await pipe.call("PING")
        proxy.fault = Fault()
        await _eventually(pipe, "fresh")
        assert [type(answer) for answer in told] == [PipeClosed] * 2
        assert pipe.begin(told.append, "ECHO", "unread")
    assert [type(answer) for answer in told] == [PipeClosed] * 3


async def test_an_error_is_of_its_own_call(redis_url: str) -> None:
    """What Redis refuses is raised to who asked; the connection and the others go on."""
    async with piped(redis_url) as (proxy, pipe):
        answers = await asyncio.gather(
            pipe.call("ECHO", "a"),
            pipe.call("NONSENSE"),
            pipe.call("ECHO", "b"),
            return_exceptions=True,
        )
        assert answers[::2] == [b"a", b"b"]
        assert isinstance(answers[1], ResponseError)
        assert proxy.counts.accepted == 1


async def test_who_leaves_takes_no_answer_with_him(redis_url: str) -> None:
    """The answer to a call that was given up goes to nobody else."""
    async with piped(redis_url) as (proxy, pipe):
        await pipe.call("PING")
        proxy.fault = Fault(blackhole=True)
        calls = [asyncio.create_task(pipe.call("ECHO", str(n))) for n in range(3)]
        await asyncio.sleep(0.01)
        calls[1].cancel()
        proxy.fault = Fault()
        assert await calls[0] == b"0"
        assert await calls[2] == b"2"


async def test_silence_ends_the_connection_and_all_that_wait(redis_url: str) -> None:
    """What is answered after the time limit is never taken for the answer to a later call."""
    async with piped(redis_url, timeout_s=0.05) as (proxy, pipe):
        await _eventually(pipe, "warm")
        proxy.fault = Fault(blackhole=True)
        answers = await asyncio.gather(
            *(pipe.call("ECHO", "late") for _ in range(3)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [PipeClosed] * 3
        proxy.fault = Fault()
        assert await _eventually(pipe, "fresh") == b"fresh"


async def test_a_silent_server_costs_little(redis_url: str) -> None:
    """After the first silence calls fail at once for a moment, and none of them connects."""
    async with piped(redis_url, timeout_s=0.05) as (proxy, pipe):
        await _eventually(pipe, "warm")
        proxy.fault = Fault(blackhole=True)
        with pytest.raises(PipeClosed):
            await pipe.call("PING")
        accepted = proxy.counts.accepted
        answers = await asyncio.gather(
            *(pipe.call("PING") for _ in range(50)), return_exceptions=True
        )
        assert {str(answer) for answer in answers} == {"not connected"}
        assert proxy.counts.accepted == accepted


async def test_a_connection_that_was_reset_is_made_again_at_once(redis_url: str) -> None:
    """The call whose answer was lost fails; one right after it does not."""
    async with piped(redis_url) as (proxy, pipe):
        await pipe.call("PING")
        proxy.fault = Fault(cut_after_bytes=0, reset=True)
        with pytest.raises(PipeClosed):
            await pipe.call("SET", "done", "1")
        proxy.fault = Fault()
        assert await pipe.call("GET", "done") == b"1"
        assert proxy.counts.accepted == 2


async def test_a_transport_that_closed_unseen_is_a_closed_connection(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to it fails by an error of the event loop's own; the next call connects again."""

    def refuse(wire: RedisWire, *command: object) -> None:
        raise RuntimeError("unable to perform operation on <UnixTransport closed=True>")

    async with piped(redis_url) as (proxy, pipe):
        await pipe.call("PING")
        with monkeypatch.context() as closed:
            closed.setattr(RedisWire, "send", refuse)
            with pytest.raises(PipeClosed):
                await pipe.call("PING")
        assert await pipe.call("ECHO", "again") == b"again"
        assert proxy.counts.accepted == 2


@pytest.mark.parametrize(
    ("refusal", "is_end"),
    [
        (b"-ERR no such thing\r\n", False),
        (b"-LOADING the dataset\r\n", True),
        (b"-NOAUTH\r\n", True),
        (b"?\r\n", True),
    ],
)
async def test_what_a_server_refuses(refusal: bytes, is_end: bool) -> None:
    """An answer is of its own call, in however many pieces it comes; what says that no other call
    will be answered either, or is no answer at all, ends the connection."""

    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while data := await reader.read(4096):
                commands.feed(data)
                while command := commands.gets():
                    answer = refusal if command[0] == b"ASK" else b"+OK\r\n"
                    for at in range(len(answer)):
                        writer.write(answer[at : at + 1])
                        await writer.drain()
                        await asyncio.sleep(0)
        left.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, _direct(f"redis://127.0.0.1:{port}/?protocol=2", timeout_s=10) as pipe:
        asked = asyncio.create_task(pipe.call("ASK"))
        await asyncio.sleep(0)
        behind = asyncio.create_task(pipe.call("ECHO", "b"))
        with pytest.raises(PipeClosed if is_end else ResponseError):
            await asked
        if is_end:
            with pytest.raises(PipeClosed):
                await behind
        else:
            assert await behind == b"OK"
            await pipe.close()
        await asyncio.wait_for(left.wait(), PATIENCE_S)


async def test_a_server_that_is_not_there_is_not_asked_by_every_call(tmp_path: Path) -> None:
    """A connection that could not be made is tried again a moment later."""
    async with piped(f"unix://{tmp_path}/nobody") as (proxy, pipe):
        for _ in range(50):
            with pytest.raises(PipeClosed):
                await pipe.call("PING")
        assert proxy.counts.accepted < 10


@pytest.mark.parametrize("busy_s", [0.052, 0.2])
async def test_a_late_event_loop_is_no_silence(redis_url: str, busy_s: float) -> None:
    """An answer that is in the socket counts, however long nobody had the time to read it."""
    # Without the proxy, which would be as late: it lives in this loop.
    async with _direct(redis_url, timeout_s=0.05) as pipe:
        await _eventually(pipe, "warm")
        told: list[object] = []
        call = asyncio.create_task(pipe.call("ECHO", "there"))
        await asyncio.sleep(0)
        assert pipe.begin(told.append, "ECHO", "too")
        time.sleep(busy_s)  # noqa: ASYNC251 - it is the point
        assert await call == b"there"
        assert told == [b"too"]
        # What looked late looks once more, and finds it answered.
        await asyncio.sleep(0.04)
        assert await pipe.call("ECHO", "later") == b"later"


async def test_a_call_with_patience_outwaits_a_silence(redis_url: str) -> None:
    """So do the others that have it; a fresh connection is made for them at once."""
    async with piped(redis_url, timeout_s=0.05) as (proxy, pipe):
        await _eventually(pipe, "warm")
        proxy.fault = Fault(blackhole=True)
        with pytest.raises(PipeClosed):
            await pipe.call("PING")
        calls = [
            asyncio.create_task(pipe.call("ECHO", str(n), patience_s=PATIENCE_S)) for n in range(9)
        ]
        await asyncio.sleep(0.2)
        proxy.fault = Fault()
        assert await asyncio.gather(*calls) == [str(n).encode() for n in range(9)]


async def test_who_has_no_patience_takes_nothing_from_who_has(redis_url: str) -> None:
    """It is given up by itself, and its answer goes to nobody else."""
    async with piped(redis_url, timeout_s=0.05) as (proxy, pipe):
        await _eventually(pipe, "warm")
        proxy.fault = Fault(blackhole=True)
        patient = asyncio.create_task(pipe.call("ECHO", "patient", patience_s=PATIENCE_S))
        await asyncio.sleep(0)
        accepted = proxy.counts.accepted
        for _ in range(3):
            with pytest.raises(PipeClosed):
                await pipe.call("ECHO", "impatient")
        told: list[object] = []
        assert pipe.begin(told.append, "ECHO", "impatient")
        await asyncio.sleep(0.07)
        assert [type(answer) for answer in told] == [PipeClosed]
        later = asyncio.create_task(pipe.call("ECHO", "later", patience_s=PATIENCE_S))
        await asyncio.sleep(0)
        proxy.fault = Fault()
        assert (await patient, await later) == (b"patient", b"later")
        assert proxy.counts.accepted == accepted


async def test_a_silence_ends_patience_too(redis_url: str) -> None:
    """With the connection, however many came since that have some left."""
    async with piped(redis_url, timeout_s=0.02) as (proxy, pipe):
        await _eventually(pipe, "warm")
        proxy.fault = Fault(blackhole=True)
        first = asyncio.create_task(pipe.call("PING", patience_s=0.1))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(pipe.call("PING", patience_s=PATIENCE_S))
        answers = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(answer) for answer in answers] == [PipeClosed] * 2


async def test_nothing_is_called_after_the_end(redis_url: str) -> None:
    """A pipe that was closed fails its calls and connects no more."""
    async with piped(redis_url) as (proxy, pipe):
        await pipe.call("PING")
        await pipe.close()
        with pytest.raises(PipeClosed):
            await pipe.call("PING")
        assert proxy.counts.accepted == 1


@asynccontextmanager
async def _direct(redis_url: str, *, timeout_s: float) -> AsyncIterator[RedisPipe]:
    client = connect_for_pipe(redis_url)
    pipe = RedisPipe(client, timeout_s=timeout_s)
    yield pipe
    await pipe.close()
    await client.aclose()


async def _eventually(pipe: RedisPipe, text: str) -> bytes:
    """Call until there is an answer: a short time limit can be too short on a busy machine."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                answer: bytes = await pipe.call("ECHO", text)
                return answer
            except PipeClosed:
                await asyncio.sleep(0.02)
