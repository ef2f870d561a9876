"""The proxy before PostgreSQL refuses in its name, and cuts a connection at a statement."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from tests.faults.postgres import FULL, STARTING, Cut, PostgresProxy

ANSWER = b"done"


class Parrot:
    """Answer whatever comes, and remember it, as a server that speaks no PostgreSQL."""

    def __init__(self) -> None:
        self.seen = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    self.seen += data
                    writer.write(ANSWER)
                    await writer.drain()
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def proxied(directory: Path) -> AsyncIterator[tuple[PostgresProxy, Parrot]]:
    parrot = Parrot()
    server = await asyncio.start_unix_server(parrot.serve, directory / ".s.PGSQL.5432")
    async with PostgresProxy(f"postgresql://user@/name?host={directory}") as proxy:
        yield proxy, parrot
    server.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(limited())


@pytest.mark.parametrize(
    ("sqlstate", "error"),
    [
        (STARTING, asyncpg.CannotConnectNowError),
        (FULL, asyncpg.TooManyConnectionsError),
        ("57P01", asyncpg.AdminShutdownError),
    ],
)
def test_a_refusal_is_what_a_driver_takes_for_postgres(
    tmp_path: Path, sqlstate: str, error: type[Exception]
) -> None:
    """Through the offer of TLS and the startup message, to the error of that SQLSTATE."""

    async def scenario() -> None:
        async with proxied(tmp_path) as (proxy, parrot):
            proxy.refuse(sqlstate)
            for _ in range(2):
                with pytest.raises(error):
                    await asyncpg.connect(proxy.url)
            assert proxy.num_refused == 2
            assert parrot.seen == b""

    run(scenario)


def test_who_is_there_is_dropped_and_let_in_again(tmp_path: Path) -> None:
    """A refusal resets open connections; afterwards bytes pass again."""

    async def scenario() -> None:
        async with proxied(tmp_path) as (proxy, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"hello")
            assert await reader.readexactly(4) == ANSWER
            proxy.refuse(STARTING)
            with pytest.raises(ConnectionError):
                await reader.readexactly(1)
            writer.close()
            proxy.relent()
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"hello")
            assert await reader.readexactly(4) == ANSWER
            writer.close()

    run(scenario)


@pytest.mark.parametrize("is_passed", [False, True], ids=["lost", "done"])
def test_a_cut_ends_one_connection_at_its_statement(tmp_path: Path, is_passed: bool) -> None:
    """Before it the server never gets the statement, after it the client never gets the answer."""

    async def scenario() -> None:
        async with proxied(tmp_path) as (proxy, parrot):
            proxy.cut = Cut(b"COMMIT", is_passed=is_passed)
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"INSERT")
            assert await reader.readexactly(4) == ANSWER
            writer.write(b"COMMIT")
            with pytest.raises(ConnectionError):
                await reader.readexactly(1)
            writer.close()
            assert (b"COMMIT" in parrot.seen) is is_passed
            assert proxy.cut is None

    run(scenario)
