"""Those who ask for the same thing at the same time share one call."""

from __future__ import annotations

import asyncio

import pytest

from gateway.services.one_flight import OneFlight

pytestmark = pytest.mark.anyio


class Slow:
    """A call that answers when it is let, and counts how often it was made."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.let = asyncio.Event()
        self.error: Exception | None = None

    async def call(self) -> int:
        self.num_calls += 1
        number = self.num_calls
        await self.let.wait()
        if self.error is not None:
            raise self.error
        return number


async def test_one_call_answers_all() -> None:
    """Ten who ask get the answer of one call; another key and a later question have their own."""
    flight: OneFlight[str, int] = OneFlight()
    slow = Slow()
    waiting = [asyncio.create_task(flight.ask("a", slow.call)) for _ in range(10)]
    other = asyncio.create_task(flight.ask("b", slow.call))
    await asyncio.sleep(0)
    slow.let.set()
    assert await asyncio.gather(*waiting) == [1] * 10
    assert await other == 2
    assert await flight.ask("a", slow.call) == 3


async def test_who_leaves_takes_nobody_along() -> None:
    """The one who made the call is cancelled; the others have its answer all the same."""
    flight: OneFlight[str, int] = OneFlight()
    slow = Slow()
    first, second = (asyncio.create_task(flight.ask("a", slow.call)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    slow.let.set()
    assert await second == 1
    assert first.cancelled()


async def test_what_was_forgotten_is_asked_anew() -> None:
    """After `forget` a call that still runs answers those who waited, and nobody else."""
    flight: OneFlight[str, int] = OneFlight()
    slow = Slow()
    early = asyncio.create_task(flight.ask("a", slow.call))
    await asyncio.sleep(0)
    flight.forget()
    late = asyncio.create_task(flight.ask("a", slow.call))
    await asyncio.sleep(0)
    slow.let.set()
    assert (await early, await late) == (1, 2)


async def test_an_error_is_everybodys_and_is_not_kept() -> None:
    """All who wait have the error; whoever asks then makes a new call."""
    flight: OneFlight[str, int] = OneFlight()
    slow = Slow()
    slow.error = OSError("away")
    waiting = [asyncio.create_task(flight.ask("a", slow.call)) for _ in range(2)]
    await asyncio.sleep(0)
    slow.let.set()
    for one in waiting:
        with pytest.raises(OSError, match="away"):
            await one
    slow.error = None
    assert await flight.ask("a", slow.call) == 2
