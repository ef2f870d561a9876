"""Old garbage is looked for when there is little to look through."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.app.full_collections import FullCollections, full_collections

pytestmark = pytest.mark.anyio


@pytest.fixture
def full() -> Iterator[list[int]]:
    """Note each full collection while the test runs."""
    seen = list[int]()

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            seen.append(info["collected"])

    gc.collect()
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def grow_old() -> None:
    for _ in range(10):
        gc.collect(1)


async def test_it_waits_until_there_are_few(full: list[int]) -> None:
    """While many objects are there none is done, and one when they are gone."""
    collections = FullCollections(few=len(gc.get_objects()) + 1000)
    held: list[list[int]] = [[] for _ in range(5000)]
    grow_old()
    await collections.look()
    assert full == []
    held.clear()
    for _ in range(10):  # counting as many is not repeated soon
        await collections.look()
    assert len(full) == 1


async def test_nothing_new_is_not_looked_through(full: list[int]) -> None:
    """Where hardly anything has stayed since the last one, there is none."""
    await FullCollections(few=1 << 40).look()
    assert full == []


async def test_the_interpreter_leaves_them_alone(full: list[int]) -> None:
    """While a server serves, what many requests hold brings no full collection; later it may."""
    async with full_collections():
        held: list[list[int]] = [[] for _ in range(200_000)]
        assert full == []
    await asyncio.sleep(0)
    held += [[] for _ in range(200_000)]
    assert full
