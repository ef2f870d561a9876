"""Bodies that are being read are bounded, for a tenant and in all, however slowly they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.api.public import public_app
from gateway.domain import Principal, TenantSlo, Tier
from gateway.errors import BodiesTooLarge, Overloaded, Saturated
from gateway.services.fair_pool import FairPool
from gateway.services.health.overload_watch import OverloadWatch
from gateway.services.inference.leased import LeasedInference
from gateway.services.inference.models import ModelRegistry, ServedModel
from gateway.services.inference.service import InferenceService
from tests.fake_quotas import leased
from tests.gateway.api.conftest import serving_health

TENANTS = [UUID(int=number) for number in range(5)]
ROOM = 400_000  # a tenant has a quarter


def left(held: dict[UUID, int], tenant: UUID) -> float:
    """A quarter of what is free, less three quarters of what it holds: a third of the rest."""
    return (400 - sum(held.values())) / 4 - held[tenant] * 3 / 4


@given(
    st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 200), st.booleans()), max_size=60)
)
def test_what_is_taken_is_bounded_and_given_back(moves: list[tuple[UUID, int, bool]]) -> None:
    """No tenant has more than a quarter, nor a third of what is free; in the end all is back."""
    bodies = HeldBytes(400)
    held: dict[UUID, int] = dict.fromkeys(TENANTS, 0)
    rooms = []
    for tenant, num_bytes, closes in moves:
        room = bodies.room(tenant)
        fits_alone, fits = held[tenant] + num_bytes <= 100, num_bytes <= left(held, tenant)
        try:
            room.grow(num_bytes)
        except BodiesTooLarge:
            assert not fits_alone
            continue
        except Saturated:
            assert fits_alone
            assert not fits
            continue
        assert fits_alone
        assert fits
        held[tenant] += num_bytes
        rooms.append(room)
        if closes:
            held[tenant] -= num_bytes
            room.close()
            room.close()
        assert bodies.num_bytes == sum(held.values())
    for room in rooms:
        room.close()
    assert bodies.num_bytes == 0


def test_what_is_there_already_counts_beyond_every_bound() -> None:
    """It takes the room of its tenant, and then of all, until it is given back."""
    bodies = HeldBytes(400)
    bodies.hold(TENANTS[0], 500)
    assert bodies.is_full(TENANTS[1])
    with pytest.raises(Saturated):
        bodies.take(TENANTS[1], 1)
    bodies.give_back(TENANTS[0], 104)
    bodies.take(TENANTS[1], 1)
    assert bodies.is_full(TENANTS[0])


class ByToken:
    """Know tenants by their names."""

    async def authenticate(self, token: str, timeline: object = None) -> Principal:
        number = int(token)
        return Principal(
            organisation_id=UUID(int=100),
            tenant_id=UUID(int=number),
            tenant=token,
            weight=1.0,
            key_id=UUID(int=200 + number),
            kid="k",
            max_tier=Tier.DEFAULT,
            slo=TenantSlo(),
        )


class Server:
    """A public API whose bodies have little room."""

    def __init__(self, model: ServedModel, leases: LeasedInference) -> None:
        self.bodies = HeldBytes(ROOM)
        app = public_app(
            models=ModelRegistry([model]),
            inference=leases,
            overload=OverloadWatch({}, memory_share=lambda: 0.0),
            auth=ByToken(),
            health=serving_health([model]),
            version="test",
            bodies=self.bodies,
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app, raise_app_exceptions=False),
            base_url="http://test",
        )

    async def post(self, tenant: int, content: Any) -> httpx.Response:
        return await self.client.post(
            "/v1/completions", headers={"authorization": f"Bearer {tenant}"}, content=content
        )


class NotedRests(FairPool):
    """A pool that notes for how long its tenants are to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.rest_ratios: list[float] = []

    async def run(self, *args: Any, rest_ratio: float = 0.0, **kwargs: Any) -> Any:
        self.rest_ratios.append(rest_ratio)
        return await super().run(*args, rest_ratio=rest_ratio, **kwargs)


async def test_a_tenant_rests_after_a_large_body_was_decoded(model: ServedModel) -> None:
    """Decoding keeps the interpreter for long, so others have it for longer before the next."""
    pool = NotedRests()
    async with leased(InferenceService(salt_key=b"salt" * 8, pool=pool)) as leases:
        server = Server(model, leases)
        async with server.client:
            assert (await server.post(1, b" " * 40_000 + BODY)).status_code == 200
            assert (await server.post(1, BODY)).status_code == 200
    pool.close()
    assert len(pool.rest_ratios) == 1
    assert pool.rest_ratios[0] >= 1


@pytest.fixture
async def server(model: ServedModel) -> AsyncIterator[Server]:
    pool = FairPool()
    async with leased(InferenceService(salt_key=b"salt" * 8, pool=pool)) as leases:
        made = Server(model, leases)
        async with made.client:
            yield made
    pool.close()


class Slow:
    """A body that comes in part, and then no more until it is told to go on."""

    def __init__(self, num_bytes: int, end: bytes = b"") -> None:
        self.go_on = asyncio.Event()
        self._num_bytes, self._end = num_bytes, end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b" " * self._num_bytes
        await self.go_on.wait()
        yield self._end


BODY = json.dumps({"model": "sim", "prompt": "a b", "max_tokens": 2}).encode()

pytestmark = pytest.mark.anyio


async def settled(server: Server, num_bytes: int) -> None:
    for _ in range(500):
        if server.bodies.num_bytes == num_bytes:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{server.bodies.num_bytes} bytes instead of {num_bytes}")


async def test_bodies_that_never_end_hold_their_own_tenant_alone(server: Server) -> None:
    """A tenant's room is used up by its half bodies; it gets 429, and its neighbour answers."""
    slow = [Slow(45_000, BODY) for _ in range(2)]
    waiting = [asyncio.create_task(server.post(1, each)) for each in slow]
    await settled(server, 90_000)
    refused = await server.post(1, b" " * 20_000 + BODY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "bodies_too_large"
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    assert (await server.post(2, b" " * 20_000 + BODY)).status_code == 200
    for each in slow:
        each.go_on.set()
    assert [(await task).status_code for task in waiting] == [200, 200]
    assert server.bodies.num_bytes == 0
    assert (await server.post(1, b" " * 20_000 + BODY)).status_code == 200


async def test_all_together_are_bounded_too(server: Server) -> None:
    """Where four hold all they get, a fourth of what is left is a fifth's; beyond, it is full."""
    slow = [Slow(num_bytes, BODY) for num_bytes in (99_000, 74_000, 56_000, 42_000)]
    waiting = [
        asyncio.create_task(server.post(number, each)) for number, each in enumerate(slow, 1)
    ]
    await settled(server, 271_000)
    assert (await server.post(4, b" " * 5_000 + BODY)).status_code == 503
    assert (await server.post(5, b" " * 40_000 + BODY)).status_code == 503
    assert (await server.post(5, b" " * 30_000 + BODY)).status_code == 200
    # Each has more room for its last bytes once those that came later are gone.
    for each, task in reversed(list(zip(slow, waiting, strict=True))):
        each.go_on.set()
        assert (await task).status_code == 200
    assert server.bodies.num_bytes == 0


async def test_a_body_is_given_back_however_it_ends(server: Server) -> None:
    """After a mistake in it, a refusal, or its client's leaving, nothing is held."""
    assert (await server.post(1, b"[" * 90_000)).status_code == 400
    assert (await server.post(1, b" " * 101_000)).status_code == 429
    task = asyncio.create_task(server.post(1, Slow(50_000)))
    await settled(server, 50_000)
    task.cancel()
    await settled(server, 0)


async def test_a_stream_holds_no_body(server: Server) -> None:
    """Once an answer has begun its request's bytes are nobody's any more."""
    body = json.dumps({"model": "sim", "prompt": "a", "max_tokens": 200, "stream": True})
    async with server.client.stream(
        "POST",
        "/v1/completions",
        headers={"authorization": "Bearer 1"},
        content=b" " * 60_000 + body.encode(),
    ) as answer:
        async for _ in answer.aiter_lines():
            assert server.bodies.num_bytes == 0
            break


def test_tenants_of_one_organisation_leave_room_to_others() -> None:
    """Bodies and answers of many together are bounded as those of one are."""
    organisation = UUID(int=100)
    for held in (
        HeldBytes(400, owner_of=lambda t: t if t == TENANTS[0] else organisation),
        held_answers(400, owner_of=lambda t: t if t == TENANTS[0] else organisation),
    ):
        for number in range(200, 220):
            with suppress(Overloaded):
                held.take(UUID(int=number), 15)
        assert held.num_bytes == 300
        held.take(TENANTS[0], 25)
