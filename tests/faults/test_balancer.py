"""The balancer sends to who is ready, retries what nobody began to answer, and lets streams end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType

from tests.faults.balancer import POLL_S, Balancer
from tests.faults.wire import Answer, BadAnswer, NoAnswer, read_answer


class Backend:
    """Answer `/readyz` by a flag, and requests with a name, once `gate` is open."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready = True
        self.refuses = False
        self.breaks_off = False
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.seen: list[bytes] = []

    async def __aenter__(self) -> Backend:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/readyz" in head:
                writer.write(b"HTTP/1.1 %d x\r\n\r\n" % (200 if self.ready else 503))
            elif not self.refuses:
                self.seen.append(head + await reader.readexactly(2))
                await self._answer(writer)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 x\r\ncontent-length: 3\r\nconnection: close\r\n\r\n")
        self.began.set()
        await self.gate.wait()
        writer.write(self.name if self.breaks_off else b"by" + self.name)


async def ask(balancer: Balancer) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
    try:
        writer.write(b"POST / HTTP/1.1\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi")
        return await read_answer(reader)
    finally:
        writer.transport.abort()


def with_two(scenario: Callable[[Balancer, Backend, Backend], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(10),
            Backend(b"a") as a,
            Backend(b"b") as b,
            Balancer((a.port, b.port)) as balancer,
        ):
            await scenario(balancer, a, b)

    asyncio.run(run())


async def until_out(balancer: Balancer, backend: Backend) -> None:
    while backend.port in balancer.ready:
        await asyncio.sleep(POLL_S / 4)


def test_ready_servers_take_turns() -> None:
    """Requests arrive whole, each on a connection that is to be closed."""

    async def scenario(balancer: Balancer, a: Backend, b: Backend) -> None:
        bodies = [(await ask(balancer)).body for _ in range(6)]
        assert bodies.count(b"bya") == bodies.count(b"byb") == 3
        head = a.seen[0].lower()
        assert head.endswith(b"hi")
        assert head.count(b"connection:") == head.count(b"connection: close") == 1

    with_two(scenario)


def test_a_server_that_is_not_ready_gets_nothing_new_and_ends_what_it_has() -> None:
    """A drain is nobody's failure."""

    async def scenario(balancer: Balancer, a: Backend, b: Backend) -> None:
        a.gate.clear()
        b.gate.clear()
        open_ones = [asyncio.create_task(ask(balancer)) for _ in range(2)]
        await a.began.wait()
        await b.began.wait()
        a.ready = False
        b.gate.set()
        await until_out(balancer, a)
        assert [(await ask(balancer)).body for _ in range(3)] == [b"byb"] * 3
        a.gate.set()
        answers = [await task for task in open_ones]
        assert {answer.body for answer in answers} == {b"bya", b"byb"}

    with_two(scenario)


def test_a_request_without_a_byte_of_an_answer_is_tried_elsewhere() -> None:
    """A server that dies between two probes costs no request."""

    async def scenario(balancer: Balancer, a: Backend, b: Backend) -> None:
        a.refuses = True
        assert [(await ask(balancer)).body for _ in range(4)] == [b"byb"] * 4
        assert balancer.balanced.retries >= 1

    with_two(scenario)


def test_an_answer_that_began_is_never_tried_again() -> None:
    """What breaks off, breaks off for the client too."""

    async def scenario(balancer: Balancer, a: Backend, b: Backend) -> None:
        a.breaks_off = b.breaks_off = True
        try:
            await ask(balancer)
        except (BadAnswer, NoAnswer, OSError):
            pass
        else:
            raise AssertionError("a whole answer")
        assert balancer.balanced.retries == 0
        assert len(a.seen) + len(b.seen) == 1

    with_two(scenario)


def test_a_request_waits_for_a_server_to_become_ready() -> None:
    """While nobody is ready, a request is held rather than failed."""

    async def scenario(balancer: Balancer, a: Backend, b: Backend) -> None:
        a.ready = b.ready = False
        await until_out(balancer, a)
        await until_out(balancer, b)
        waiting = asyncio.create_task(ask(balancer))
        await asyncio.sleep(2 * POLL_S)
        assert not waiting.done()
        b.ready = True
        assert (await waiting).body == b"byb"

    with_two(scenario)
