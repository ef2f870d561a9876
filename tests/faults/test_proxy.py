"""Each fault of the proxy does what it says, and can be changed while connections are open."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.faults.proxy import Fault, FaultProxy

Proxied = tuple[FaultProxy, asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def proxied(fault: Fault, *, greeting: bytes = b"") -> AsyncIterator[Proxied]:
    """Connect through a proxy to a server that greets, then echoes until its client's end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(greeting)
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with FaultProxy("127.0.0.1", port, fault=fault, seed=1) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield proxy, reader, writer
        writer.transport.abort()
    server.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(limited())


async def is_silent(reader: asyncio.StreamReader, *, for_s: float = 0.1) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), for_s)
    except TimeoutError:
        return True
    return False


def test_without_a_fault_all_bytes_pass_both_ways() -> None:
    """A megabyte comes back as it went, and an end is passed on."""
    data = bytes(range(256)) * 4096

    async def scenario() -> None:
        async with proxied(Fault()) as (proxy, reader, writer):
            writer.write(data)
            writer.write_eof()
            assert await reader.read(-1) == data
            assert proxy.counts.bytes_to_server == proxy.counts.bytes_to_client == len(data)

    run(scenario)


def test_latency_delays_each_way() -> None:
    """A round trip takes at least both delays."""

    async def scenario() -> None:
        async with proxied(Fault(latency_s=0.1, jitter_s=0.02)) as (proxy, reader, writer):
            started = time.monotonic()
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            assert time.monotonic() - started >= 0.16
            assert proxy.counts.delays >= 2

    run(scenario)


def test_a_blackhole_accepts_and_holds_all_until_it_is_lifted() -> None:
    """Nothing passes while it lasts, and nothing is lost."""

    async def scenario() -> None:
        async with proxied(Fault(blackhole=True)) as (proxy, reader, writer):
            writer.write(b"held")
            assert await is_silent(reader)
            assert proxy.counts.accepted == 1
            assert proxy.counts.bytes_to_server == 0
            proxy.fault = Fault()
            assert await reader.readexactly(4) == b"held"

    run(scenario)


def test_a_reset_fails_the_clients_read() -> None:
    """A fault set on an open connection resets it."""

    async def scenario() -> None:
        async with proxied(Fault()) as (proxy, reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.fault = Fault(reset=True)
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            assert proxy.counts.resets == 1

    run(scenario)


def test_reset_all_resets_what_is_open_alone() -> None:
    """The next connection works."""

    async def scenario() -> None:
        async with proxied(Fault()) as (proxy, reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.reset_all()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            again, other = await asyncio.open_connection("127.0.0.1", proxy.port)
            other.write(b"y")
            assert await again.readexactly(1) == b"y"
            other.transport.abort()

    run(scenario)


def test_a_half_close_ends_the_reply_but_not_the_request() -> None:
    """The client reads an end, while its own bytes still reach the server."""

    async def scenario() -> None:
        async with proxied(Fault()) as (proxy, reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.fault = Fault(half_close=True)
            assert await reader.read(-1) == b""
            writer.write(b"more")
            while proxy.counts.bytes_to_server < 5:
                await asyncio.sleep(0.01)
            assert proxy.counts.half_closes == 1

    run(scenario)


@pytest.mark.parametrize("reset", [False, True])
def test_a_reply_is_cut_after_so_many_bytes(reset: bool) -> None:
    """No byte more passes, and the connection ends as it was told to."""

    async def scenario() -> None:
        fault = Fault(cut_after_bytes=1000, reset=reset)
        async with proxied(fault, greeting=b"a" * 5000) as (proxy, reader, _):
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while data := await reader.read(100):
                    received += data
            # A reset may take back what the client has not read yet.
            assert len(received) <= 1000 if reset else len(received) == 1000
            assert proxy.counts.bytes_to_client == 1000
            assert (proxy.counts.cuts, proxy.counts.resets) == (1, int(reset))

    run(scenario)


def test_a_cut_after_no_byte_drops_the_whole_reply() -> None:
    """The request reached the server, and its client learns nothing."""

    async def scenario() -> None:
        async with proxied(Fault(cut_after_bytes=0)) as (proxy, reader, writer):
            writer.write(b"order")
            assert await reader.read(-1) == b""
            assert proxy.counts.bytes_to_server == 5
            assert proxy.counts.bytes_to_client == 0

    run(scenario)


def test_a_connection_keeps_the_fault_that_was_chosen_for_it() -> None:
    """Each connection is asked for once; one without a choice has the proxy's own fault."""
    choices: list[Fault | None] = [Fault(cut_after_bytes=2), None]

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with FaultProxy("127.0.0.1", port, choose=lambda: choices.pop(0)) as proxy:
            received = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                received.append(await reader.read(-1))
                writer.transport.abort()
            assert received == [b"he", b"hello"]
            assert (proxy.counts.accepted, proxy.counts.cuts) == (2, 1)
        server.close()

    run(scenario)


def test_a_throttled_reply_comes_no_faster_than_its_rate() -> None:
    """A fifth of a second's worth takes about that long."""

    async def scenario() -> None:
        async with proxied(Fault(bytes_per_s=10_000), greeting=b"a" * 3000) as (_, reader, _w):
            started = time.monotonic()
            await reader.readexactly(3000)
            # The last piece is not waited for.
            assert time.monotonic() - started >= 0.19

    run(scenario)


def test_a_server_that_is_not_there_is_a_closed_connection() -> None:
    """The proxy counts it as refused."""

    async def scenario() -> None:
        gone = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = gone.sockets[0].getsockname()[1]
        gone.close()
        await gone.wait_closed()
        async with FaultProxy("127.0.0.1", port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(-1) == b""
            assert proxy.counts.refused == 1
            writer.transport.abort()

    run(scenario)


def test_a_deafened_proxy_refuses_until_it_listens_again() -> None:
    """Who is there is reset, who comes is refused by the system, and the port stays the same."""

    async def scenario() -> None:
        async with proxied(Fault()) as (proxy, reader, _):
            port = proxy.port
            for _ in range(3):
                await proxy.deafen()
                with pytest.raises(ConnectionError):
                    await reader.readexactly(1)
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", port)
                await proxy.listen()
                assert proxy.port == port
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"again")
                assert await reader.readexactly(5) == b"again"
            writer.transport.abort()

    run(scenario)
