"""Services whose engines compute in turns: all is answered, and a fault of one is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import fakes
from faulty_engine import FaultyEngine
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.engine_turns import EngineTurns
from scheduler.request import FinishReason
from scheduler.service import EngineService
from scheduler.stream import StreamDelta, TokenStream

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(
    *engines: FaultyEngine, patience_s: float = 20.0
) -> AsyncIterator[list[EngineService]]:
    """Run a service an engine, all in turns."""
    turns = EngineTurns(patience_s=patience_s)
    services = [
        EngineService(Scheduler(one.info, first_come()), one, place=turns.place(1.0), name=str(n))
        for n, one in enumerate(engines)
    ]
    for service in services:
        service.start()
    try:
        yield services
    finally:
        for engine in engines:
            engine.gate.set()
        await asyncio.gather(*(asyncio.to_thread(service.stop) for service in services))


async def last_of(stream: TokenStream) -> StreamDelta:
    async for delta in stream:
        last = delta
    return last


def make_engine() -> FaultyEngine:
    return FaultyEngine(fakes.make_engine(depth=1, num_blocks=64))


async def test_all_are_answered() -> None:
    """Requests to three at once end as they would alone."""
    async with serving(make_engine(), make_engine(), make_engine()) as services:
        ends = await asyncio.gather(
            *(
                last_of(service.submit(fakes.make_request(f"r{n}", max_tokens=n + 1)))
                for service in services
                for n in range(12)
            )
        )
    assert {end.finish_reason for end in ends} <= {FinishReason.LENGTH, FinishReason.STOP}


async def test_one_that_cannot_be_reset_leaves_the_other_alone() -> None:
    """Its requests end with an error, it is not ready, and the other goes on."""
    broken, whole = make_engine(), make_engine()
    broken.failing_steps["bad"], broken.failing_reset = 1, True
    async with serving(broken, whole) as (ill, well):
        ended = await last_of(ill.submit(fakes.make_request("bad", max_tokens=4)))
        assert ended.finish_reason is FinishReason.ERROR
        for n in range(3):
            request = fakes.make_request(f"r{n}", max_tokens=4, ignore_eos=True)
            end = await last_of(well.submit(request))
            assert end.finish_reason is FinishReason.LENGTH
        assert (ill.ready, well.ready) == (False, True)


async def test_one_that_hangs_in_a_step_does_not_stop_the_other() -> None:
    """It is passed over; what it was asked for stays where it is."""
    stuck, whole = make_engine(), make_engine()
    async with serving(stuck, whole, patience_s=0.05) as (ill, well):
        stuck.gate.clear()
        waiting = ill.submit(fakes.make_request("hangs", max_tokens=2, ignore_eos=True))
        end = await last_of(well.submit(fakes.make_request("r", max_tokens=4, ignore_eos=True)))
        assert end.finish_reason is FinishReason.LENGTH
        stuck.gate.set()
        assert (await last_of(waiting)).finish_reason is FinishReason.LENGTH
