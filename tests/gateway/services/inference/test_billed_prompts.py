"""Prompts that are computed are billed, whoever ends them and when."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from starlette.types import Message

import fakes
from engine.contract import SamplingParams, StepPlan, StepResult
from engine.demo import MODEL_DIR
from engine.text import Tokenizer
from fakes import StepwiseEngine
from gateway.api.body import ClientGone
from gateway.api.held_bytes import held_answers
from gateway.api.openai.answer import Gathering, collect_answer
from gateway.api.openai.endpoint import ClientWatch
from gateway.domain import Principal, Tier
from gateway.domain.price import Price
from gateway.domain.usage import Outcome, UsageRow
from gateway.errors import (
    AnswersSaturated,
    AnswersTooLarge,
    AuthenticationFailed,
    GatewayError,
    InternalFailure,
    ServerDraining,
)
from gateway.services.fair_pool import FairPool
from gateway.services.inference import InferenceService, Job, LeasedInference, Run, ServedModel
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.service import EngineService
from tests.fake_quotas import leased

pytestmark = pytest.mark.anyio

PROMPT, CHUNK, BLOCK = 1000, 100, 50
# A nano-dollar a token of input, half of it for one that was found.
PRICE = Price(UUID(int=9), "m", 1, datetime(2026, 1, 1, tzinfo=UTC), 1_000_000, 500_000, 4_000_000)
ACME = Principal(
    organisation_id=UUID(int=1),
    tenant_id=UUID(int=2),
    tenant="acme",
    weight=1.0,
    key_id=UUID(int=3),
    kid="k",
)


class HaltingEngine(StepwiseEngine):
    """Close the gate as soon as a step is launched that brings a prompt to `halt_at` tokens."""

    halt_at = PROMPT + 1
    num_collected = 0

    def launch(self, plan: StepPlan) -> object:
        if any(chunk.start + chunk.n_tokens >= self.halt_at for chunk in plan.slices):
            self.gate.clear()
        return super().launch(plan)

    def collect(self, handle: object) -> StepResult:
        try:
            return super().collect(handle)
        finally:
            self.num_collected += 1


@dataclass
class Bench:
    """Run prompts on a small engine; `rows` is the journal."""

    engine: HaltingEngine
    service: EngineService
    model: ServedModel
    leases: LeasedInference
    rows: list[UsageRow]

    async def start(self, *prompts: array[int], choices: int = 1, max_tokens: int = 9) -> Run:
        """Begin one request."""
        request_id = uuid4().hex
        jobs = [
            Job(
                request_id=f"{request_id}-{index}-{choice}",
                prompt=prompt,
                params=SamplingParams(max_tokens=max_tokens, seed=choice),
            )
            for index, prompt in enumerate(prompts)
            for choice in range(choices)
        ]
        return await self.leases.start(
            ACME, self.model, jobs, Tier.DEFAULT, request_id=request_id, choices_per_prompt=choices
        )

    async def start_to(self, halt_at: int, *prompts: array[int], choices: int = 1) -> Run:
        """Begin one request and wait until a step is at `halt_at` tokens of a prompt."""
        self.engine.halt_at = halt_at
        run = await self.start(*prompts, choices=choices)
        await until_clear(self.engine)
        return run

    def go_on(self) -> None:
        """Let the engine finish what it was halted in, and whatever comes."""
        self.engine.halt_at = PROMPT + 1
        self.engine.gate.set()

    async def idle(self) -> None:
        """Wait until every step that was planned has come back."""
        async with asyncio.timeout(10):
            while self.service.snapshot().num_steps != self.engine.num_collected:
                await asyncio.sleep(0.0005)

    def billed(self) -> tuple[int, int, int]:
        """Return input, cached and output tokens of the newest bill; it is exact in nano-USD."""
        bill = self.rows[-1]
        dollars = bill.input_tokens - bill.cached_tokens + -(-bill.cached_tokens // 2)
        assert bill.nano_usd == dollars + 4 * bill.output_tokens
        return bill.input_tokens, bill.cached_tokens, bill.output_tokens


async def until_clear(engine: StepwiseEngine) -> None:
    async with asyncio.timeout(10):
        while engine.gate.is_set():
            await asyncio.sleep(0.0005)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_dir(MODEL_DIR)


@asynccontextmanager
async def opened(tokenizer: Tokenizer, *, depth: int = 1) -> AsyncIterator[Bench]:
    engine = HaltingEngine(
        fakes.make_engine(
            vocab_size=tokenizer.vocab_size,
            max_model_len=PROMPT + 24,
            max_num_batched_tokens=CHUNK,
            num_blocks=100,
            block_size=BLOCK,
            depth=depth,
        )
    )
    service = EngineService(Scheduler(engine.info, first_come()), engine)
    model = ServedModel(
        name="m",
        service=service,
        info=engine.info,
        tokenizer=tokenizer,
        chat_template=None,
        created_s=0,
        fingerprint="fp",
    )
    service.start()
    rows: list[UsageRow] = []
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    try:
        async with leased(inference, rows, PRICE) as leases:
            yield Bench(engine, service, model, leases, rows)
            engine.gate.set()
    finally:
        engine.gate.set()
        await asyncio.to_thread(service.stop)


@pytest.fixture
async def bench(tokenizer: Tokenizer) -> AsyncIterator[Bench]:
    async with opened(tokenizer) as made:
        yield made


def prompt_of(seed: int, *, size: int = PROMPT) -> array[int]:
    draw = random.Random(seed)
    return array("i", [draw.randrange(300, 1000) for _ in range(size)])


async def read_one(run: Run) -> None:
    await run.generations[0].next()


@pytest.mark.parametrize("depth", [1, 2])
async def test_prompts_left_at_four_fifths_are_billed_four_fifths(
    tokenizer: Tokenizer, depth: int
) -> None:
    """Thirty long prompts that their clients leave just before the first token, each at once."""
    async with opened(tokenizer, depth=depth) as bench:
        for seed in range(30):
            run = await bench.start_to(PROMPT * 4 // 5, prompt_of(seed))
            run.close()
            bench.go_on()
    assert [row.outcome for row in bench.rows] == [Outcome.CANCELLED] * 30
    assert [row.input_tokens for row in bench.rows] == [PROMPT * 4 // 5] * 30
    assert [row.nano_usd for row in bench.rows] == [PROMPT * 4 // 5] * 30


async def test_a_client_that_hangs_up_is_billed(bench: Bench) -> None:
    """By whoever watches it; until then nothing is told of a prompt that is being computed."""
    run = await bench.start_to(700, prompt_of(1))
    assert run.generations[0].num_prefilled_tokens == 0

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    gatherings = [Gathering() for _ in run.generations]
    with pytest.raises(ClientGone):
        async with ClientWatch(receive, run):
            await collect_answer(run, gatherings, held_answers().room(UUID(int=2)))
    assert bench.billed() == (700, 0, 0)
    assert bench.rows[-1].outcome is Outcome.CANCELLED


async def test_the_next_one_pays_for_what_it_finds(bench: Bench) -> None:
    """What a cancelled prompt left in the cache costs its own price, and so does what is added."""
    prompt = prompt_of(1)
    (await bench.start_to(500, prompt)).close()
    bench.go_on()
    run = await bench.start_to(800, prompt)
    run.close()
    assert [row.input_tokens for row in bench.rows] == [500, 800]
    # The step that was halted had not come back when its row was ended: it is in no cache.
    assert bench.billed() == (800, 400, 0)


async def test_a_queued_prompt_costs_nothing(bench: Bench) -> None:
    """It is behind another, which takes whole steps."""
    first = await bench.start_to(200, prompt_of(1))
    waiting = await bench.start(prompt_of(2))
    waiting.close()
    assert bench.billed() == (0, 0, 0)
    assert bench.rows[-1].outcome is Outcome.CANCELLED
    first.close()
    assert bench.billed() == (200, 0, 0)


async def test_a_revoked_key_pays_for_what_was_computed(bench: Bench) -> None:
    """Its request ends with the error that its reader meets."""
    run = await bench.start_to(300, prompt_of(1))
    run.generations[0].fail(AuthenticationFailed())
    with pytest.raises(AuthenticationFailed) as refused:
        await read_one(run)
    run.fail(refused.value)
    assert bench.billed() == (300, 0, 0)


async def test_with_its_first_token_a_prompt_is_whole(bench: Bench) -> None:
    """Read or not."""
    run = await bench.start(prompt_of(1))
    await read_one(run)
    assert run.generations[0].num_prefilled_tokens == PROMPT
    run.close()
    num_input, num_cached, num_output = bench.billed()
    assert (num_input, num_cached) == (PROMPT, 0)
    assert num_output >= 1
    run = await bench.start(prompt_of(1))
    async with asyncio.timeout(10):
        while not run.generations[0].num_used_tokens:
            await asyncio.sleep(0.001)
    run.close()
    assert bench.billed()[:2] == (PROMPT, PROMPT - BLOCK)


async def test_choices_pay_for_one_prompt(bench: Bench) -> None:
    """Four choices wait for the one that computes it, and are ended with it."""
    run = await bench.start_to(400, prompt_of(1), choices=4)
    run.close()
    assert bench.billed() == (400, 0, 0)
    bench.go_on()
    run = await bench.start(prompt_of(2), choices=4, max_tokens=1)
    for generation in run.generations:
        while (await generation.next()).finish_reason is None:
            pass
    run.complete()
    assert bench.billed() == (PROMPT, 0, 4)


async def test_prompts_of_one_request_pay_each_for_itself(bench: Bench) -> None:
    """The second is computed halfway when the client leaves, the third is not begun."""
    prompts = [prompt_of(1, size=80), prompt_of(2), prompt_of(3)]
    run = await bench.start_to(480, *prompts)
    run.close()
    num_input, num_cached, _ = bench.billed()
    assert num_cached == 0
    assert 80 + 480 <= num_input == num_launched(bench.engine.plans) < 80 + PROMPT


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_fault_of_the_engine_costs_nothing(bench: Bench, is_read: bool) -> None:
    """Whether its client is still there to be told, or has left already."""
    run = await bench.start_to(300, prompt_of(1))
    bench.engine.failing_collects = 1
    bench.go_on()
    if is_read:
        with pytest.raises(InternalFailure) as failed:
            await read_one(run)
        run.fail(failed.value)
    else:
        async with asyncio.timeout(10):
            while not run.generations[0].has_failed:
                await asyncio.sleep(0.001)
    run.close()
    assert bench.billed() == (0, 0, 0)
    assert bench.rows[-1].outcome is Outcome.FAILED


async def test_what_a_stop_of_the_server_cuts_off_before_a_token_costs_nothing(
    bench: Bench,
) -> None:
    """It was ours to end, and its client has nothing of it."""
    run = await bench.start_to(300, prompt_of(1))
    stopping = asyncio.create_task(asyncio.to_thread(bench.service.stop))
    async with asyncio.timeout(10):
        while not bench.service.stopping:
            await asyncio.sleep(0.001)
    bench.go_on()
    await stopping
    with pytest.raises(ServerDraining) as ended:
        await read_one(run)
    run.fail(ended.value)
    assert bench.billed() == (0, 0, 0)
    assert bench.rows[-1].outcome is Outcome.CANCELLED


@pytest.mark.parametrize("error", [AnswersSaturated, AnswersTooLarge])
async def test_an_answer_given_up_for_others_costs_what_its_own_tenant_took(
    bench: Bench, error: type[GatewayError]
) -> None:
    """What its own tenant's answers took is its own doing, what those of others took is not."""
    run = await bench.start_to(300, prompt_of(1))
    run.fail(error(retry_after_s=1.0))
    is_own = error is AnswersTooLarge
    assert bench.rows[-1].outcome is (Outcome.CANCELLED if is_own else Outcome.FAILED)
    assert (bench.billed() == (0, 0, 0)) is not is_own


async def test_however_it_ends_the_bill_is_what_was_computed_and_found(bench: Bench) -> None:
    """Requests with prefixes in common, ended at random: never more than the prompts have.

    Further choices compute what lies behind the last whole block: nobody pays for that.
    """
    draw = random.Random(5)
    for _ in range(60):
        prompts = [
            prompt_of(draw.randrange(3))[: draw.randrange(1, PROMPT)]
            for _ in range(draw.choice((1, 1, 2)))
        ]
        choices, before = draw.choice((1, 1, 3)), len(bench.engine.plans)
        if draw.random() < 0.5:
            run = await bench.start_to(draw.randint(1, len(prompts[0])), *prompts, choices=choices)
        else:
            run = await bench.start(*prompts, choices=choices, max_tokens=draw.choice((1, 5)))
            await asyncio.sleep(draw.random() * 0.01)
        if bench.engine.gate.is_set() and draw.random() < 0.3:
            await read_one(run)
        run.close()
        bench.go_on()
        await bench.idle()
        num_input, num_cached, _ = bench.billed()
        computed, size = num_launched(bench.engine.plans[before:]), sum(map(len, prompts))
        assert num_input <= size
        assert num_input - num_cached <= computed
        assert choices > 1 or num_input - num_cached == computed
    part = [row for row in bench.rows if row.input_tokens and not row.output_tokens]
    assert len(part) > 10


def num_launched(plans: Sequence[StepPlan]) -> int:
    return sum(chunk.n_tokens for plan in plans for chunk in plan.slices)
