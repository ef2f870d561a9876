"""Pages by keyset: whole, and read in pieces that leave the event loop to others."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Integer, Row, column, func, select

from gateway.domain.page import PageRequest
from gateway.store import Store
from gateway.store.keyset import Keyset

pytestmark = pytest.mark.anyio

NUMBERS = (
    func.generate_series(0, 999).table_valued(column("n", Integer), name="numbers").render_derived()
)
KEYSET = Keyset((NUMBERS.c.n,))  # type: ignore[arg-type]  # a column of no table


async def test_a_long_page_leaves_the_loop_to_others(store: Store) -> None:
    """Of a thousand rows a hundred are read in a row, and the page is as one statement has it."""
    others, turns = 0, list[int]()

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    def read(row: Row[Any]) -> int:
        turns.append(others)
        return int(row.n)

    beside = asyncio.ensure_future(other())
    async with store.database.platform() as connection:
        page = await KEYSET.page(connection, select(NUMBERS.c.n), PageRequest(950), read)
    beside.cancel()
    assert (page.data, page.next) == (list(range(950)), ("949",))
    begun = [0, *(n for n, (a, b) in enumerate(pairwise(turns), 1) if b > a), len(turns)]
    assert max(b - a for a, b in pairwise(begun)) <= 100


@pytest.mark.parametrize("limit", [100, 101, 200, 1000, 1001])
async def test_pages_of_any_length_make_the_list(store: Store, limit: int) -> None:
    """What one page ends with the next goes on after, also where a piece ends with it."""
    found, request = list[int](), PageRequest(limit)
    async with store.database.platform() as connection:
        while True:
            page = await KEYSET.page(connection, select(NUMBERS.c.n), request, lambda row: row.n)
            found += page.data
            if page.next is None:
                break
            assert len(page.data) == limit
            request = PageRequest(limit, page.next)
    assert found == list(range(1000))
