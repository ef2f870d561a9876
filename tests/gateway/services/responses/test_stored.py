"""What is stored of responses: bounds, chains, a database that is away or slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from gateway.credentials import Secrets
from gateway.domain.stored_response import NO_CHAIN, Chain
from gateway.errors import InvalidRequest, ResponseNotFound, StoreUnavailable
from gateway.services.fair_pool import FairPool
from gateway.services.responses import MAX_CHAIN, MAX_CHAIN_BYTES, StoredResponses
from gateway.services.responses.stored import AWAY_S, MAX_AT_ONCE, MAX_RESPONSE_BYTES
from tests.gateway.api.responses.kept_here import KeptHere

pytestmark = pytest.mark.anyio

A, B = UUID(int=1), UUID(int=2)


class Said(msgspec.Struct):
    output: list[Any]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """The service over a fake store."""

    def __init__(self, pool: FairPool, **more: Any) -> None:
        self.store, self.clock = KeptHere(), Clock()
        given: dict[str, Any] = {"max_tenant_bytes": 1 << 20, "max_tenant_rows": 160}
        self.service = StoredResponses(
            self.store, Secrets(b"s" * 32), pool, clock=self.clock, **given | more
        )

    async def keep(
        self, said: str = "yes", chain: Chain = NO_CHAIN, tenant: UUID = A, sent: str = "hm"
    ) -> tuple[UUID, bool]:
        name = uuid4()
        answer = Said([{"said": said}])
        return name, await self.service.keep(tenant, name, chain, [{"sent": sent}], answer)


@pytest.fixture
def pool() -> Iterator[FairPool]:
    pool = FairPool()
    yield pool
    pool.close()


async def test_what_is_kept_is_read_and_encrypted(pool: FairPool) -> None:
    """What the store holds has none of the words, and is bound to its place."""
    kept = Kept(pool)
    name, is_kept = await kept.keep("secret words", sent="secret question")
    assert is_kept
    assert msgspec.json.decode(await kept.service.get(A, name))["output"] == [
        {"said": "secret words"}
    ]
    assert await kept.service.sent(A, name) == [{"sent": "secret question"}]
    [row] = kept.store.rows.values()
    assert b"secret" not in row.sent + row.answer
    kept.store.rows[A, name] = replace(row, answer=row.sent)
    with pytest.raises(ResponseNotFound):
        await kept.service.get(A, name)


async def test_another_tenants_is_not_there(pool: FairPool) -> None:
    """To read, to go on from, to delete; a row that was moved to it cannot be opened."""
    kept = Kept(pool)
    name, _ = await kept.keep()
    for asked in (kept.service.get, kept.service.sent, kept.service.chain, kept.service.delete):
        with pytest.raises(ResponseNotFound):
            await asked(B, name)
    [row] = kept.store.rows.values()
    kept.store.rows[B, name] = replace(row, tenant_id=B)
    with pytest.raises(ResponseNotFound):
        await kept.service.chain(B, name)


async def test_a_chain_has_all_items_in_their_order(pool: FairPool) -> None:
    """What was sent before what was answered, the first response first."""
    kept, chain = Kept(pool), NO_CHAIN
    for number in range(3):
        name, _ = await kept.keep(f"a{number}", chain, sent=f"q{number}")
        chain = await kept.service.chain(A, name)
        assert (chain.previous_id, chain.depth) == (name, number + 1)
    said = [next(iter(item.values())) for item in chain.items]
    assert said == ["q0", "a0", "q1", "a1", "q2", "a2"]
    assert chain.num_bytes == sum(row.num_bytes for row in kept.store.rows.values())


async def test_a_chain_ends_where_one_is_gone(pool: FairPool) -> None:
    """It cannot be gone on from: half of a conversation would be another one."""
    kept = Kept(pool)
    first, _ = await kept.keep()
    second, _ = await kept.keep(chain=await kept.service.chain(A, first))
    third, _ = await kept.keep(chain=await kept.service.chain(A, second))
    await kept.service.delete(A, first)
    with pytest.raises(ResponseNotFound, match="not stored any more") as raised:
        await kept.service.chain(A, third)
    assert raised.value.param == "previous_response_id"
    # Itself it can still be read.
    await kept.service.get(A, third)


async def test_a_chain_of_a_thousand_is_as_long_as_it_gets(pool: FairPool) -> None:
    """The last of them can be read, but not be gone on from; nor one of too many bytes."""
    kept = Kept(pool)
    name, _ = await kept.keep(chain=Chain(None, MAX_CHAIN - 2, 0, ()))
    row = kept.store.rows[A, name]
    assert row.depth == MAX_CHAIN - 1
    for changed in (
        replace(row, depth=MAX_CHAIN),
        replace(row, depth=1, chain_bytes=MAX_CHAIN_BYTES),
    ):
        kept.store.rows[A, name] = changed
        with pytest.raises(InvalidRequest) as raised:
            await kept.service.chain(A, name)
        assert raised.value.code == "chain_too_long"
        await kept.service.get(A, name)


async def test_what_a_chain_takes_is_told_before_it_is_read(pool: FairPool) -> None:
    """Whoever has no room for it refuses, and its rows are never fetched."""
    kept = Kept(pool)
    first, _ = await kept.keep()
    second, _ = await kept.keep(chain=await kept.service.chain(A, first))
    asked, told = kept.store.num_asked, []

    def take(num_bytes: int) -> None:
        told.append(num_bytes)
        raise MemoryError

    with pytest.raises(MemoryError):
        await kept.service.chain(A, second, take)
    assert told == [kept.store.rows[A, second].chain_bytes]
    assert kept.store.num_asked == asked + 1


async def test_what_is_too_large_is_not_kept(pool: FairPool) -> None:
    """And the store is not asked."""
    kept = Kept(pool)
    _, is_kept = await kept.keep("x" * MAX_RESPONSE_BYTES)
    assert not is_kept
    assert not kept.store.num_asked
    _, is_kept = await kept.keep("x" * (MAX_RESPONSE_BYTES // 2))
    assert is_kept


async def test_a_store_that_is_away_is_not_asked_for_a_while(pool: FairPool) -> None:
    """Who asks for storing in so many words is refused meanwhile; then it is tried again."""
    kept = Kept(pool)
    kept.service.require()
    kept.store.is_away = True
    assert (await kept.keep())[1] is False
    asked = kept.store.num_asked
    assert (await kept.keep())[1] is False
    assert kept.store.num_asked == asked
    with pytest.raises(StoreUnavailable) as raised:
        kept.service.require()
    assert raised.value.retry_after_s == pytest.approx(AWAY_S)
    kept.store.is_away = False
    kept.clock.now += AWAY_S
    kept.service.require()
    assert (await kept.keep())[1] is True


async def test_an_answer_waits_only_so_long(pool: FairPool) -> None:
    """A database that hangs is one that is away."""
    kept = Kept(pool, save_s=0.05)
    kept.store.delay_s = 60
    assert (await kept.keep())[1] is False
    with pytest.raises(StoreUnavailable):
        kept.service.require()


async def test_one_tenants_queue_is_no_reason_to_think_it_away(pool: FairPool) -> None:
    """Nor do its writes take more than one connection, or all tenants' more than there are."""
    kept = Kept(pool, save_s=0.4)
    kept.store.delay_s = 0.05
    many = await asyncio.gather(*(kept.keep() for _ in range(20)))
    assert kept.store.most_at_once == 1
    assert 1 <= sum(is_kept for _, is_kept in many) < 20
    # The last of them had begun, and was given up with little of its time left.
    assert kept.store.num_asked > sum(is_kept for _, is_kept in many)
    kept.service.require()
    kept.store.delay_s = 0.01
    others = await asyncio.gather(*(kept.keep(tenant=UUID(int=9 + n)) for n in range(9)))
    assert all(is_kept for _, is_kept in others)
    assert kept.store.most_at_once == MAX_AT_ONCE


async def test_a_tenants_bounds_are_looked_after_as_it_stores(pool: FairPool) -> None:
    """Each time that it has stored a sixteenth of what it may have."""
    kept = Kept(pool)
    for _ in range(25):
        await kept.keep()
    await asyncio.sleep(0.01)
    assert kept.store.trimmed == [(A, 160, 1 << 20)] * 2
    await kept.keep("x" * (1 << 17))
    await asyncio.sleep(0.01)
    assert len(kept.store.trimmed) == 3
