"""Hashing and checking passwords with Argon2id, in a way that costs nobody else anything.

A hash takes 19 MiB and some tens of milliseconds by design, and strangers may ask for as many as
they like. So one thread makes them, the operating system's last choice among all threads, one after
the other, each followed by a rest of three times as long: a quarter of a core at most, and 19 MiB.
Few wait; more are told to come back. Whoever is not known costs what others cost.
Source: RFC 9106; the parameters are OWASP's for a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import argon2
from argon2.exceptions import InvalidHashError, VerificationError

from gateway.errors import InvalidRequest, LoginLimited

T = TypeVar("T")

MIN_CHARS, MAX_CHARS = 12, 256
_MIN_DIFFERENT: Final = 5
MEMORY_KIB, _PASSES, _LANES = 19 << 10, 2, 1
MAX_WAITING: Final = 8
_REST_RATIO: Final = 3.0
_RETRY_AFTER_S: Final = 3.0
_NICE: Final = 19


class Passwords:
    """Hash and check passwords; `close` once nothing more is asked of it."""

    def __init__(self, *, memory_kib: int = MEMORY_KIB, rest_ratio: float = _REST_RATIO) -> None:
        self._hasher = argon2.PasswordHasher(_PASSES, memory_kib, _LANES)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="passwords", initializer=_be_last)
        self._turn = asyncio.Lock()
        self._rest_ratio = rest_ratio
        self._rests_until_s = 0.0
        self._num_waiting = 0
        self._nobodys = _hash_of_nothing(memory_kib)

    async def hash(self, password: str) -> str:
        """Return what is kept of a password. Raises: `LoginLimited`: too many wait."""
        return await self._in_turn(lambda: self._hasher.hash(password))

    async def verify(self, password: str, password_hash: str | None) -> bool:
        """Tell whether a password is the one of a hash; None is nobody's, and takes as long.

        Raises: `LoginLimited`: too many wait.
        """
        wanted = password_hash or self._nobodys

        def check() -> bool:
            try:
                return self._hasher.verify(wanted, password[:MAX_CHARS])
            except (VerificationError, InvalidHashError):
                return False

        return await self._in_turn(check) and password_hash is not None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._num_waiting >= MAX_WAITING:
            raise LoginLimited(retry_after_s=_RETRY_AFTER_S, detail="too many passwords wait")
        loop = asyncio.get_running_loop()
        self._num_waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(self._rests_until_s - loop.time())
                result, took_s = await loop.run_in_executor(self._thread, _timed, work)
                self._rests_until_s = loop.time() + self._rest_ratio * took_s
                return result
        finally:
            self._num_waiting -= 1


def require_password(password: str, name: str) -> None:
    """Refuse what is quickly guessed. Raises: `InvalidRequest`."""
    if not MIN_CHARS <= len(password) <= MAX_CHARS:
        raise InvalidRequest(
            f"A password has {MIN_CHARS} to {MAX_CHARS} characters.", param="password"
        )
    known = {name, name.partition("@")[0], "password", "sluice", "administrator"}
    rest = password.lower()
    for word in sorted(known - {""}, key=len, reverse=True):
        rest = rest.replace(word, "")
    if len(set(rest)) < _MIN_DIFFERENT:
        raise InvalidRequest("That password is quickly guessed.", param="password")


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began_s = time.thread_time()
    result = work()
    return result, time.thread_time() - began_s


def _be_last() -> None:
    """Have the thread run where no other wants to; where there is no such thing, as the others."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _hash_of_nothing(memory_kib: int) -> str:
    """Write a hash that no password has, and that costs as much to check."""
    salt, tag = (b64encode(secrets.token_bytes(n)).rstrip(b"=").decode() for n in (16, 32))
    return f"$argon2id$v=19$m={memory_kib},t={_PASSES},p={_LANES}${salt}${tag}"
