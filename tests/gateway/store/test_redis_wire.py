"""What comes on a connection that was taken over from redis-py, and what no longer counts."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from gateway.store.redis_wire import RedisWire

pytestmark = pytest.mark.anyio


class Connection:
    """Stand for redis-py's, once connected: its own writer and transport."""

    def __init__(self) -> None:
        self._writer = self.transport = self
        self.protocol: asyncio.Protocol | None = None
        self.written: list[bytes] = []
        self.num_disconnects = 0

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def disconnect(self, *, nowait: bool) -> None:
        assert nowait
        self.num_disconnects += 1


class Wired:
    def __init__(self) -> None:
        self.connection = Connection()
        self.answers: list[Any] = []
        self.ends: list[Exception] = []
        connection = cast(AbstractConnection, self.connection)
        self.wire = RedisWire(connection, self.answers.append, self.ends.append)


async def test_answers_are_handed_on_as_they_come() -> None:
    """Several in a piece, and one in several; a refusal is one of them, and so is nothing."""
    wired = Wired()
    assert wired.connection.protocol is wired.wire
    wired.wire.send("ECHO", 5, b"\0")
    assert wired.connection.written == [b"*3\r\n$4\r\nECHO\r\n$1\r\n5\r\n$1\r\n\0\r\n"]
    wired.wire.data_received(b"$1\r\na\r\n-ERR no\r\n$-1\r\n$2\r\nb")
    assert wired.answers[0] == b"a"
    assert isinstance(wired.answers[1], ResponseError)
    assert wired.answers[2:] == [None]
    wired.wire.data_received(b"c\r\n")
    assert wired.answers[3:] == [b"bc"]
    assert wired.ends == []


async def test_what_comes_after_the_end_is_nobodys() -> None:
    """Who made another connection waits for answers of that one."""
    wired = Wired()
    wired.wire.close()
    wired.wire.close()
    wired.wire.data_received(b"+OK\r\n")
    wired.wire.connection_lost(None)
    await asyncio.sleep(0)
    assert wired.answers == []
    assert wired.ends == []
    assert wired.connection.num_disconnects == 1


@pytest.mark.parametrize("data", [b"-LOADING soon\r\n", b"-NOAUTH who\r\n", b"?\r\n"])
async def test_a_connection_ends_once(data: bytes) -> None:
    """By the first of what ends it; what stands behind that in the same piece is not handed on."""
    wired = Wired()
    wired.wire.data_received(b"+OK\r\n" + data + b"+OK\r\n")
    wired.wire.connection_lost(ConnectionResetError())
    await asyncio.sleep(0)
    assert wired.answers == [b"OK"]
    assert len(wired.ends) == 1
    assert wired.connection.num_disconnects == 1


async def test_an_answer_that_nobody_waits_for_ends_the_connection() -> None:
    """What follows it would be somebody else's."""

    def refuse(answer: object) -> None:
        raise IndexError("nobody waits")

    wired = Wired()
    wire = RedisWire(cast(AbstractConnection, wired.connection), refuse, wired.ends.append)
    wire.data_received(b"+OK\r\n")
    await asyncio.sleep(0)
    assert [type(error) for error in wired.ends] == [IndexError]
