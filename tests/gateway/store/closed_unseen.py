"""A connection to Redis whose transport has closed before anybody saw it, as uvloop has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, UnixDomainSocketConnection


class ClosesUnseen(UnixDomainSocketConnection):
    """Fail to write by an error of the event loop's own, while `is_closed`."""

    is_closed = False

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if ClosesUnseen.is_closed:
            await self.disconnect(nowait=True)
            raise RuntimeError("unable to perform operation on <UnixTransport closed=True>")
        await super().send_packed_command(command, check_health)


@asynccontextmanager
async def closing_client(redis_url: str) -> AsyncIterator[Redis]:
    """Make a client of such connections."""
    ClosesUnseen.is_closed = False
    parts = urlsplit(redis_url)
    pool = ConnectionPool(ClosesUnseen, path=unquote(parts.path), password=parts.password)
    yield Redis(connection_pool=pool)
    await pool.aclose()
