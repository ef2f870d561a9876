"""Passwords: what is kept, what is refused, and that guessing costs nobody else anything."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import argon2
import pytest

from gateway.errors import InvalidRequest, LoginLimited
from gateway.services.sign_in.passwords import (
    MAX_WAITING,
    MEMORY_KIB,
    Passwords,
    require_password,
)

pytestmark = pytest.mark.anyio


async def test_a_password_is_known_by_its_hash_alone() -> None:
    """The right one is, a wrong one and nobody's are not; two hashes of one are not the same."""
    passwords = Passwords()
    first, second = await passwords.hash("one two three"), await passwords.hash("one two three")
    assert first != second
    assert first.startswith(f"$argon2id$v=19$m={MEMORY_KIB},t=2,p=1$")
    assert await passwords.verify("one two three", first)
    assert not await passwords.verify("one two thref", first)
    assert not await passwords.verify("one two three", None)
    assert not await passwords.verify("one two three", "no hash")
    passwords.close()


async def test_who_is_not_known_costs_what_others_cost() -> None:
    """The hash of nobody asks for the work of anybody's, and no password has it."""
    passwords = Passwords()
    known = await passwords.hash("one two three")
    nobodys = argon2.extract_parameters(passwords._nobodys)
    assert nobodys == argon2.extract_parameters(known)
    assert not await passwords.verify("", passwords._nobodys)
    passwords.close()


async def test_a_flood_waits_in_a_short_queue() -> None:
    """Some wait, more are told to come back, and nothing of it is done on the event loop."""
    passwords = Passwords()
    before = threading.active_count()
    asked = [passwords.verify("a wrong one", None) for _ in range(100)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [one for one in answers if isinstance(one, LoginLimited)]
    assert len(refused) == 100 - MAX_WAITING
    assert all(one.retry_after_s for one in refused)
    assert threading.active_count() <= before + 1
    passwords.close()


async def test_hashing_has_a_quarter_of_a_core_and_the_last_turn() -> None:
    """In a flood the thread computes a quarter of the time at most, at the lowest priority."""
    passwords = Passwords()
    nice: list[int] = []

    def look() -> float:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return time.thread_time()

    began_cpu_s = await passwords._in_turn(look)
    began_s = time.monotonic()

    async def flood() -> None:
        while time.monotonic() - began_s < 1.5:
            await passwords.verify("a wrong one", None)

    await asyncio.gather(*(flood() for _ in range(MAX_WAITING)))
    used_s = await passwords._in_turn(time.thread_time) - began_cpu_s
    passwords.close()
    assert nice == [19]
    assert used_s / (time.monotonic() - began_s) < 0.3


async def test_a_flood_of_logins_does_not_hold_the_event_loop() -> None:
    """While strangers post logins, what others wait for goes on: the loop is never held 50 ms."""
    passwords = Passwords()
    lags_s: list[float] = []

    async def measure() -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await asyncio.sleep(0.005)
            lags_s.append(loop.time() - began_s - 0.005)

    async def flood() -> None:
        for _ in range(3):
            await passwords.verify("a wrong one", None)

    measuring = asyncio.create_task(measure())
    await asyncio.gather(*(flood() for _ in range(MAX_WAITING)))
    measuring.cancel()
    passwords.close()
    assert len(lags_s) > 50
    assert sorted(lags_s)[len(lags_s) * 9 // 10] < 0.05


@pytest.mark.parametrize(
    "password",
    [
        "",
        "eleven char",
        "x" * 257,
        "aaaaaaaaaaaaaa",
        "ann@example.org",
        "password1234",
        "abababababab",
    ],
)
def test_what_is_quickly_guessed_is_refused(password: str) -> None:
    """Too short, too long, few letters, one's own name, a word that everybody tries."""
    with pytest.raises(InvalidRequest):
        require_password(password, "ann@example.org")


def test_words_that_nobody_knows_are_enough() -> None:
    """There is no rule about digits and signs."""
    require_password("correct horse battery", "ann")
