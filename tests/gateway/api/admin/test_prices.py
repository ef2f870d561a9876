"""The admin API of prices: decimals in, the same decimals out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.store import Store
from tests.gateway.admin_app import admin_app, admin_client

pytestmark = pytest.mark.anyio

URL = "/admin/v1/prices"


@pytest.fixture
async def admin(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API as an owner."""
    assert store.first_start is not None
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        yield client


async def test_a_price_comes_back_as_it_was_sent(admin: httpx.AsyncClient) -> None:
    """As numbers or strings, to the last digit; what is left out has its default."""
    body = b'{"model": "org/m", "input_usd_per_mtok": 0.1, "output_usd_per_mtok": "0.400000001"}'
    made = await admin.post(URL, content=body)
    assert made.status_code == 201
    price = made.json()
    assert {
        "model": "org/m",
        "version": 1,
        "input_usd_per_mtok": "0.1",
        "cached_usd_per_mtok": "0.1",
        "output_usd_per_mtok": "0.400000001",
        "priority_multiplier": "2",
        "default_multiplier": "1",
        "flex_multiplier": "0.5",
        "batch_multiplier": "0.5",
    }.items() <= price.items()
    assert (await admin.get(f"{URL}/org/m")).json() == price


async def test_a_new_price_is_a_new_version(admin: httpx.AsyncClient) -> None:
    """The list shows the newest of each model, or every version."""
    body: dict[str, Any] = {"model": "m", "input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    first = (await admin.post(URL, json=body)).json()
    second = (await admin.post(URL, json=body | {"cached_usd_per_mtok": "0.25"})).json()
    assert (first["version"], second["version"]) == (1, 2)
    newest = (await admin.get(URL)).json()["data"]
    assert [(price["model"], price["version"]) for price in newest] == [("*", 1), ("m", 2)]
    every = (await admin.get(URL, params={"all": "true"})).json()["data"]
    assert every[1:] == [first, second]
    assert (await admin.get(f"{URL}/m")).json() == second
    assert (await admin.get(f"{URL}/*")).json()["input_usd_per_mtok"] == "0.1"


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ('"input_usd_per_mtok": -0.1', "input_usd_per_mtok"),
        ('"input_usd_per_mtok": 0.0000000001', "input_usd_per_mtok"),
        ('"output_usd_per_mtok": "1e99"', "output_usd_per_mtok"),
        ('"output_usd_per_mtok": "NaN"', "output_usd_per_mtok"),
        ('"output_usd_per_mtok": "a dollar"', "output_usd_per_mtok"),
        ('"output_usd_per_mtok": null', "output_usd_per_mtok"),
        ('"flex_multiplier": 0.00001', "flex_multiplier"),
        ('"batch_multiplier": 101', "batch_multiplier"),
        ('"model": ""', "model"),
        ('"model": "a\\u0000"', "model"),
        ('"version": 3', "version"),
    ],
)
async def test_a_bad_price_is_refused(admin: httpx.AsyncClient, change: str, param: str) -> None:
    """More digits than are kept, or a number out of bounds, is an error, never rounded."""
    body = '{"model": "m", "input_usd_per_mtok": 1, "output_usd_per_mtok": 1, ' + change + "}"
    answer = await admin.post(URL, content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len((await admin.get(URL)).json()["data"]) == 1


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("query", "status"), [("/none", 404), ("/%00", 404), ("?all=yes", 400), ("?model=m", 400)]
)
async def test_what_is_not_there_is_a_clear_error(
    admin: httpx.AsyncClient, query: str, status: int
) -> None:
    """A model without a price of its own, and parameters that nobody knows."""
    assert (await admin.get(URL + query)).status_code == status
