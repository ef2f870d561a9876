"""Prices in PostgreSQL: versions that are added to."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import delete

from gateway.domain.page import PageRequest
from gateway.domain.price import ANY_MODEL, PriceDraft
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.tables import prices
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio


def draft(model: str, amount: int) -> PriceDraft:
    return PriceDraft(
        model=model,
        input_nano_per_mtok=amount,
        cached_nano_per_mtok=amount,
        output_nano_per_mtok=amount,
    )


async def test_a_first_start_has_a_price_for_any_model(settings: Settings) -> None:
    """0.10, 0.05 and 0.40 USD a million tokens, made once."""
    for _ in range(2):
        async with open_store(settings) as store:
            [price] = await store.prices.current()
    assert (price.model, price.version) == (ANY_MODEL, 1)
    assert price.input_nano_per_mtok == 100_000_000
    assert price.cached_nano_per_mtok == 50_000_000
    assert price.output_nano_per_mtok == 400_000_000


async def test_a_database_from_before_prices_gets_one(settings: Settings) -> None:
    """A start that finds none makes the first start's."""
    async with open_store(settings) as store, store.database.platform() as connection:
        await connection.execute(delete(prices))
    async with open_store(settings) as store:
        assert [price.model for price in await store.prices.current()] == [ANY_MODEL]


async def test_the_newest_version_is_the_price(store: Store) -> None:
    """What was a price stays a version; the list shows the newest of each model, or all."""
    organisation = await store.organisations.default()
    first = await store.prices.add(ACTOR, organisation.id, draft("m", 1))
    second = await store.prices.add(ACTOR, organisation.id, draft("m", 2))
    assert (first.version, second.version) == (1, 2)
    assert await store.prices.find("m") == second
    assert await store.prices.find("n") is None
    newest = await store.prices.page(PageRequest())
    assert [(price.model, price.version) for price in newest.data] == [("*", 1), ("m", 2)]
    every = await store.prices.page(PageRequest(), every_version=True)
    assert every.data[1:] == [first, second]


async def test_versions_added_at_once_are_numbered_apart(store: Store) -> None:
    """However many add a version together, each gets a number of its own."""
    organisation = await store.organisations.default()
    added = await asyncio.gather(
        *(store.prices.add(ACTOR, organisation.id, draft("m", n)) for n in range(8))
    )
    assert sorted(price.version for price in added) == list(range(1, 9))
