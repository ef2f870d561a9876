"""What a fault in the engine costs: the row, the step or nobody, and never a neighbour's tokens.

Requests are greedy or seeded, so a victim's tokens can be compared with a run without faults.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fakes
from checkpoints import make_tiny_llama
from engine.config import EngineConfig
from engine.contract import Engine, SamplingParams
from engine.cpu.runner import TorchEngine
from fakes import ManualClock
from faulty_engine import FaultyEngine
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import FinishReason, Request
from scheduler.service import EngineService
from scheduler.stream import StreamDelta, TokenStream

pytestmark = pytest.mark.anyio

MAX_TOKENS = 12
NAMES = ("victim-0", "victim-1", "culprit", "victim-2")


@pytest.fixture(scope="module")
def torch_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchEngine]:
    path: Path = tmp_path_factory.mktemp("llama")
    make_tiny_llama(path, eos_token_id=None)
    engine = TorchEngine(
        EngineConfig(
            model_dir=path, block_size=16, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=96
        )
    )
    yield engine
    engine.close()


class KeptOpen(FaultyEngine):
    """Leave the engine to the tests that come after."""

    def close(self) -> None:
        self.engine.reset()


def simulated(depth: int = 1, *, late: bool = False) -> FaultyEngine:
    engine = fakes.make_engine(depth=depth, max_num_seqs=8, num_blocks=64)
    return FaultyEngine(engine, late=late)


def make_requests() -> list[Request]:
    """Make four requests of prompts that take some steps, and draw for a while."""
    draw = random.Random(5)
    return [
        fakes.make_request(
            name, prompt=[draw.randrange(3, 50) for _ in range(9)], max_tokens=MAX_TOKENS, seed=i
        )
        for i, name in enumerate(NAMES)
    ]


def make_greedy() -> list[Request]:
    draw = random.Random(6)
    return [
        Request(
            request_id=name,
            tenant_id="t",
            key_id="k",
            prompt_token_ids=array("i", [draw.randrange(3, 128) for _ in range(20 + 9 * i)]),
            params=SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0),
            cache_salt=b"t",
            arrival_s=0.0,
        )
        for i, name in enumerate(NAMES)
    ]


@asynccontextmanager
async def serving(
    engine: FaultyEngine, *, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[EngineService]:
    service = EngineService(Scheduler(engine.info, first_come()), engine, clock=clock)
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


async def run(
    service: EngineService, engine: FaultyEngine, requests: list[Request]
) -> dict[str, tuple[list[int], StreamDelta]]:
    """Serve requests side by side; returns each one's tokens and end."""
    engine.gate.clear()
    streams = [service.submit(request) for request in requests]
    engine.gate.set()
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*(read_all(stream) for stream in streams))
    return dict(zip((request.request_id for request in requests), ends, strict=True))


def check_victims(
    ends: dict[str, tuple[list[int], StreamDelta]], expected: dict[str, list[int]]
) -> None:
    for name, tokens in expected.items():
        if name.startswith("victim"):
            assert ends[name][0] == tokens
            assert ends[name][1].finish_reason is FinishReason.LENGTH


def expected_of(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    return {r.request_id: fakes.expected_tokens(r, engine.info)[0] for r in requests}


async def greedy_tokens(engine: TorchEngine) -> dict[str, list[int]]:
    """Say what the greedy requests get when nothing is broken."""
    whole = KeptOpen(engine)
    async with serving(whole) as service:
        ends = await run(service, whole, make_greedy())
    return {name: tokens for name, (tokens, _) in ends.items()}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("at_step", [1, 2, 5])
async def test_a_row_that_fails_ends_alone(depth: int, at_step: int) -> None:
    """A row that the engine gives up on ends with an error, and nobody else notices."""
    engine, requests = simulated(depth), make_requests()
    engine.failing_rows["culprit"] = at_step
    async with serving(engine) as service:
        ends = await run(service, engine, requests)
        check_victims(ends, expected_of(engine, requests))
        assert ends["culprit"][1].finish_reason is FinishReason.ERROR
        assert ends["culprit"][1].error == "a fault in one row"
        assert service.ready
        counts = service.snapshot()
    assert (engine.num_resets, counts.free_blocks) == (0, 64)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at_step", [1, 2, 5])
async def test_a_step_that_raises_takes_its_rows_and_the_next_ones_are_served(
    depth: int, late: bool, at_step: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that raises ends those in it; whoever waits then, or comes later, gets its tokens."""
    engine, requests = simulated(depth, late=late), make_requests()
    engine.failing_steps["culprit"] = at_step
    async with serving(engine) as service:
        ends = await run(service, engine, requests)
        assert ends["culprit"][1].finish_reason is FinishReason.ERROR
        assert ends["culprit"][1].error == "RuntimeError: a fault in one step"
        expected = expected_of(engine, requests)
        for name, (tokens, last) in ends.items():
            assert tokens == expected[name][: len(tokens)]
            failed = name in engine.in_failed_step
            assert last.finish_reason is (FinishReason.ERROR if failed else FinishReason.LENGTH)
        assert "culprit" in engine.in_failed_step
        again = [r for r in make_requests() if r.request_id != "culprit"]
        check_victims(await run(service, engine, again), expected_of(engine, again))
        assert service.ready
    assert engine.num_resets == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(("gap_s", "is_ready"), [(29.0, False), (31.0, True)])
async def test_three_faults_within_a_minute_turn_readiness_off(
    gap_s: float, is_ready: bool
) -> None:
    """The third fault in 60 s turns `ready` off, which further apart they do not; all is served."""
    clock, engine = ManualClock(), simulated()
    async with serving(engine, clock=clock) as service:
        for i in range(3):
            clock.now = i * gap_s
            assert service.ready
            engine.failing_steps[f"r{i}"] = 1
            _, last = await read_all(service.submit(fakes.make_request(f"r{i}")))
            assert last.finish_reason is FinishReason.ERROR
        assert (service.healthy, service.ready) == (True, is_ready)
        request = fakes.make_request("served")
        tokens, _ = await read_all(service.submit(request))
        assert tokens == fakes.expected_tokens(request, engine.info)[0]


async def test_readiness_comes_back_after_half_a_minute_without_a_fault() -> None:
    """`ready` is back 30 s after the last fault, and one on the way there starts the time anew."""
    clock, engine = ManualClock(), simulated()
    async with serving(engine, clock=clock) as service:
        for i, at_s in enumerate((0.0, 0.0, 0.0, 29.0)):
            clock.now = at_s
            engine.failing_steps[f"r{i}"] = 1
            await read_all(service.submit(fakes.make_request(f"r{i}")))
        clock.now = 58.9
        assert not service.ready
        clock.now = 59.0
        assert service.ready
    assert not service.ready


async def test_an_engine_that_cannot_be_rebuilt_is_never_ready_again() -> None:
    """Where the reset fails too, `healthy` and `ready` are off for good."""
    clock, engine = ManualClock(), simulated()
    engine.failing_reset = True
    engine.failing_steps["r"] = 1
    async with serving(engine, clock=clock) as service:
        await read_all(service.submit(fakes.make_request()))
        async with asyncio.timeout(10):
            while service.healthy:
                await asyncio.sleep(0.001)
        clock.now = 1e6
        assert not service.ready


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("late", [False, True])
# Of 19 tokens: four prompts of nine do not fit however many of them the first step has.
@pytest.mark.parametrize(("max_num_tokens", "max_num_rows"), [(19, 100), (100, 2), (30, 1)])
async def test_a_step_without_memory_shrinks_the_batch_and_nobody_ends(
    depth: int,
    late: bool,
    max_num_tokens: int,
    max_num_rows: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Steps get smaller until they fit; each request has its tokens, and later ones as well."""
    inner = fakes.make_engine(depth=depth, max_num_seqs=8, num_blocks=64, max_num_batched_tokens=80)
    engine, requests = FaultyEngine(inner, late=late), make_requests()
    engine.max_num_tokens, engine.max_num_rows = max_num_tokens, max_num_rows
    async with serving(engine) as service:
        ends = await run(service, engine, requests)
        expected = expected_of(engine, requests)
        assert {name: tokens for name, (tokens, _) in ends.items()} == expected
        counts, num_resets = service.snapshot(), engine.num_resets
        assert counts.num_shrinks == num_resets >= 1
        assert counts.max_step_tokens <= max_num_tokens or counts.max_step_rows <= max_num_rows
        assert service.state().counts == counts
        assert service.ready
        again = make_requests()
        assert (await run(service, engine, again)).keys() == expected.keys()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * engine.num_resets


async def test_a_request_too_large_for_any_step_fails_alone() -> None:
    """One that finds no memory by itself ends with an error, and steps are large again."""
    engine, requests = simulated(), make_requests()
    engine.too_large.add("culprit")
    async with serving(engine) as service:
        ends = await run(service, engine, requests)
        check_victims(ends, expected_of(engine, requests))
        assert ends["culprit"][1].finish_reason is FinishReason.ERROR
        assert ends["culprit"][1].error is not None
        assert ends["culprit"][1].error.startswith("EngineOutOfMemory: ")
        counts = service.snapshot()
        assert (counts.max_step_tokens, counts.max_step_rows) == (16, 8)
        assert counts.num_shrinks >= 1
        assert service.ready


async def test_victims_of_the_real_engine_keep_their_greedy_tokens(
    torch_engine: TorchEngine,
) -> None:
    """Beside a row that fails, and after steps without memory, greedy tokens are the same."""
    expected = await greedy_tokens(torch_engine)
    assert {len(tokens) for tokens in expected.values()} == {MAX_TOKENS}
    for at_step in (1, 4):
        engine = KeptOpen(torch_engine)
        engine.failing_rows["culprit"] = at_step
        async with serving(engine) as service:
            ends = await run(service, engine, make_greedy())
        check_victims(ends, expected)
        assert ends["culprit"][1].finish_reason is FinishReason.ERROR
    engine = KeptOpen(torch_engine)
    engine.max_num_tokens, engine.max_num_rows = 40, 2
    async with serving(engine) as service:
        ends = await run(service, engine, make_greedy())
        assert service.snapshot().num_shrinks >= 2
    assert {name: tokens for name, (tokens, _) in ends.items()} == expected


async def test_the_real_engine_serves_on_after_a_step_that_raised(
    torch_engine: TorchEngine,
) -> None:
    """After a step that raised, the rebuilt engine draws the tokens that it would have drawn."""
    expected = await greedy_tokens(torch_engine)
    engine = KeptOpen(torch_engine)
    engine.failing_steps["culprit"] = 3
    async with serving(engine) as service:
        ends = await run(service, engine, make_greedy())
        assert ends["culprit"][1].finish_reason is FinishReason.ERROR
        again = await run(service, engine, make_greedy())
    assert {name: tokens for name, (tokens, _) in again.items()} == expected
