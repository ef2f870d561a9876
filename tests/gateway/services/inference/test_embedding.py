"""Lists of inputs on their way to vectors, by a scheduler that is ours to answer for."""

from __future__ import annotations

import asyncio
from array import array
from uuid import UUID

import pytest

from engine.contract import SamplingParams
from gateway.services.inference.embedding import Embedding
from gateway.services.inference.embedding_inputs import EmbeddingJob, PreparedEmbedding
from gateway.services.loop_share import LoopShare
from scheduler.request import FinishReason, RequestOutput
from scheduler.stream import TokenStream

pytestmark = pytest.mark.anyio

ACME, GLOBEX = UUID(int=1), UUID(int=2)
NUM_INPUTS = 20


class Scheduler:
    """Compute each input as it comes."""

    stopping = False

    def __init__(self) -> None:
        self.num_taken = 0

    def hand_over(
        self, request_id: str, prompt: array[int], params: SamplingParams, granted: int | None
    ) -> TokenStream:
        self.num_taken += 1
        stream = TokenStream(request_id, lambda _: None)
        stream.push(RequestOutput(request_id, (), FinishReason.STOP, 0, 1, pooled=[1.0]))
        return stream

    def extend(self, request_id: str, granted_tokens: int | None) -> None:
        raise AssertionError("it draws no tokens")

    def finish_granted(self, request_id: str) -> None:
        raise AssertionError("it draws no tokens")


def prepared() -> PreparedEmbedding:
    prompts = [array("i", [5])] * NUM_INPUTS
    job = EmbeddingJob(request_id="list", inputs=[("input", prompt) for prompt in prompts])
    return PreparedEmbedding(job, prompts, NUM_INPUTS)


async def test_each_input_begins_as_a_request_does() -> None:
    """While its tenant is ahead of its share of the loop, no more of a list is handed over."""
    now_s = 1000.0
    share, scheduler = LoopShare(lambda: now_s), Scheduler()
    share.of(GLOBEX).charge(0.01)
    acme = share.of(ACME)

    async def read() -> int:
        computing = Embedding(scheduler, scheduler.hand_over, prepared())
        acme.charge(0.02)
        num = 0
        while computing.ended_by is None:
            num += len((await computing.next()).vectors)
        return num

    reading = asyncio.create_task(acme.charged(read()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert scheduler.num_taken == 1
    now_s += 1
    assert await asyncio.wait_for(reading, 5) == scheduler.num_taken == NUM_INPUTS


async def test_a_list_that_is_closed_while_it_waits_hands_over_nothing_more() -> None:
    """Who leaves before the rest of a list has had its turn has no more of it computed."""
    now_s = 1000.0
    share, scheduler = LoopShare(lambda: now_s), Scheduler()
    share.of(GLOBEX).charge(0.01)
    acme = share.of(ACME)
    computing = Embedding(scheduler, scheduler.hand_over, prepared())
    acme.charge(0.02)
    reading = asyncio.create_task(acme.charged(computing.next()))
    for _ in range(10):
        await asyncio.sleep(0)
    computing.close()
    now_s += 1
    assert (await asyncio.wait_for(reading, 5)).finish_reason == FinishReason.CANCELLED
    assert scheduler.num_taken == 1
