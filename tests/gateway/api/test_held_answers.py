"""Log-probabilities of answers that are gathered whole are bounded, for a tenant and in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.errors import AnswersTooLarge
from gateway.services.fair_pool import FairPool
from gateway.services.inference.models import ServedModel
from gateway.services.inference.service import InferenceService
from tests.fake_quotas import leased
from tests.gateway.api.conftest import KEY, api_over

pytestmark = pytest.mark.anyio

TENANT, OTHERS = UUID(int=2), [UUID(int=number) for number in range(3, 6)]
# For 100 tokens with five likeliest, of which each takes 100 bytes and 40 for each of six.
SHARE = 100 * (100 + 6 * 40)


class Server:
    """The demo model's API with little room for answers."""

    def __init__(self, client: httpx.AsyncClient, answers: HeldBytes) -> None:
        self.answers = answers
        self._client = client

    async def ask(self, max_tokens: int, **more: Any) -> httpx.Response:
        asked = {"model": "demo", "prompt": [600], "logprobs": 5, "ignore_eos": True}
        body = asked | {"max_tokens": max_tokens} | more
        return await self._client.post("/v1/completions", json=body)


@pytest.fixture
async def server(demo: ServedModel) -> AsyncIterator[Server]:
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    answers = held_answers(4 * SHARE)
    async with leased(inference) as leases:
        transport = httpx.ASGITransport(app=api_over(leases, demo, answers=answers))
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", headers=headers, timeout=60
        ) as client:
            yield Server(client, answers)
    inference.pool.close()


async def test_an_answer_may_have_its_tenants_share(server: Server) -> None:
    """100 tokens fit, one more is refused for good, and neither leaves anything behind."""
    fits = await server.ask(100)
    assert fits.status_code == 200
    assert int(fits.headers["content-length"]) == len(fits.content)
    assert len(fits.json()["choices"][0]["logprobs"]["top_logprobs"]) == 100
    assert server.answers.num_bytes == 0
    refused = await server.ask(101)
    assert refused.status_code == 400
    assert "stream" in refused.json()["error"]["message"]
    assert server.answers.num_bytes == 0


async def test_a_stream_and_an_answer_without_take_nothing(server: Server) -> None:
    """What is sent as it comes, and what has no log-probabilities, is not held back."""
    server.answers.take(TENANT, SHARE)
    assert (await server.ask(120, stream=True)).status_code == 200
    assert (await server.ask(120, logprobs=None)).status_code == 200


async def test_several_answers_share_the_room(server: Server) -> None:
    """Beside others of its tenant it is refused for now, and beside those of all tenants."""
    server.answers.take(TENANT, SHARE // 2)
    refused = await server.ask(60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "answers_too_large")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await server.ask(50)).status_code == 200
    server.answers.give_back(TENANT, SHARE // 2)
    for tenant_id in OTHERS:
        server.answers.take(tenant_id, SHARE * 2 // 3)
    # A quarter of what is left is a half of a share.
    assert (await server.ask(50)).status_code == 200
    refused = await server.ask(60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "answers_saturated")
    assert server.answers.num_bytes == 3 * (SHARE * 2 // 3)


async def test_of_answers_that_grow_alike_the_last_give_way(server: Server) -> None:
    """Of six at once that have room for two some are sent whole, and the others are refused.

    Refused where they come to it, none would be sent: all are nearly done by then.
    """
    answers = await asyncio.gather(*(server.ask(48, logprobs=5) for _ in range(6)))
    codes = [answer.status_code for answer in answers]
    assert codes[:2] == [200, 200]
    assert 429 in codes
    assert server.answers.num_bytes == 0


def test_batches_give_way_first_and_what_is_whole_does_not() -> None:
    """The answer of a batch goes before one that began later, and never one that is being sent."""
    held = held_answers(400)
    whole, batch = held.growing_room(TENANT), held.growing_room(TENANT, is_batch=True)
    last = held.growing_room(TENANT)
    whole.grow(40)
    whole.is_whole()
    batch.grow(30)
    last.grow(30)
    last.grow(30)
    assert (whole.num_bytes, batch.num_bytes, last.num_bytes) == (40, 0, 60)
    for room in (batch, last):
        with pytest.raises(AnswersTooLarge):
            room.grow(1)
    first = held.growing_room(OTHERS[0])
    first.grow(75)
    for room in (whole, batch, last, first):
        room.close()
    assert held.num_bytes == 0
    assert not held._growing


def test_what_is_reserved_gives_way_to_nobody_and_nobody_to_it() -> None:
    """What an answer is known to take is refused or stays counted until it is sent."""
    held = held_answers(400)
    first, reserved = held.growing_room(TENANT), held.growing_room(TENANT)
    reserved.reserve(60)
    with pytest.raises(AnswersTooLarge):
        first.grow(50)
    assert reserved.num_bytes == 60
    late = held.growing_room(TENANT)
    late.grow(40)
    with pytest.raises(AnswersTooLarge):
        first.reserve(1)
    assert late.num_bytes == 40
    for room in (first, reserved, late):
        room.close()
    assert held.num_bytes == 0


def test_who_gave_way_after_its_last_piece_is_refused() -> None:
    """It is not sent without being counted, though nothing more of it comes."""
    held = held_answers(400)
    first, last = held.growing_room(TENANT), held.growing_room(TENANT)
    last.grow(60)
    first.grow(60)
    with pytest.raises(AnswersTooLarge):
        last.is_whole()
