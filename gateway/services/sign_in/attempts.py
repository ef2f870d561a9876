"""How often an address, and how often an account, may be tried: here first, then everywhere.

This process's own count keeps a flood from one address off Redis; that of all processes is there.
Where Redis is away, this process's count is what there is: neither open nor closed. A sign-in that
succeeds begins its account anew, and not its address, which could be trying others too.

Whoever tries an account all the time, from anywhere, takes each attempt that it has again. From
where its owner has signed in before it has attempts of its own, which nobody elsewhere takes.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from gateway.domain.address import counted_as
from gateway.domain.login_rate import Bucket
from gateway.errors import CountersUnavailable, LoginLimited
from gateway.ports import Clock, LoginAttempts

log = logging.getLogger(__name__)

ACCOUNT_BURST, ACCOUNT_INTERVAL_S = 10, 30.0
ADDRESS_BURST, ADDRESS_INTERVAL_S = 20, 6.0
# How long it is known from where somebody has signed in.
_KNOWN_S: Final = 30 * 86_400.0
_MAX_KEPT: Final = 10_000
_NAME_CHARS: Final = 128


class Attempts:
    """Let attempts through, or say when to come back."""

    def __init__(self, shared: LoginAttempts, clock: Clock = time) -> None:
        self._shared = shared
        self._clock = clock
        # When each bucket's next attempt is due; the oldest first.
        self._due_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def admit(self, address: str | None, account: str | None = None) -> None:
        """Count an attempt. Raises: `LoginLimited`: the same whether the account is there or not.

        A sign-in that names no account, as by a key, counts for its address alone.
        """
        of_address = _of_address(address)
        if account is None:
            wait_s = await self._wait_s([of_address])
        else:
            wait_s = await self._wait_s([of_address, _of_account(account)])
            if wait_s > 0 and await self._knows(_place(account, address)):
                wait_s = await self._wait_s([of_address, _of_place(_place(account, address))])
        if wait_s > 0:
            raise LoginLimited(retry_after_s=wait_s)

    async def _wait_s(self, buckets: Sequence[Bucket]) -> float:
        """Count one in each bucket here and everywhere, and return 0; or in none, and the wait."""
        wait_s = self._take(buckets)
        if wait_s <= 0:
            try:
                wait_s = await self._shared.take(buckets)
            except CountersUnavailable as exc:
                log.warning("attempts to sign in are counted by this process alone: %s", exc)
        return wait_s

    async def _knows(self, place: str) -> bool:
        try:
            return await self._shared.knows(place)
        except CountersUnavailable:
            return False

    async def is_first(self, visit: str, within_s: float) -> bool:
        """Tell whether something that is good once comes for the first time."""
        bucket = Bucket("visit", visit, 1, within_s)
        if self._take([bucket]) > 0:
            return False
        try:
            return await self._shared.take([bucket]) <= 0
        except CountersUnavailable as exc:
            log.warning("that it was not used before is known of this process alone: %s", exc)
            return True

    async def succeeded(self, account: str, address: str | None) -> None:
        """Begin an account anew, and know from where it was."""
        place = _place(account, address)
        buckets = _of_account(account), _of_place(place)
        for bucket in buckets:
            self._due_at.pop((bucket.kind, bucket.whom), None)
        try:
            for bucket in buckets:
                await self._shared.forget(bucket)
            if address is not None:
                await self._shared.learn(place, _KNOWN_S)
        except CountersUnavailable as exc:
            log.warning("the attempts of an account stay counted: %s", exc)

    def _take(self, buckets: Sequence[Bucket]) -> float:
        now = self._clock.monotonic()
        due = [max(self._due_at.get((b.kind, b.whom), now), now) for b in buckets]
        wait_s = max(
            at - now - (b.burst - 1) * b.interval_s for b, at in zip(buckets, due, strict=True)
        )
        if wait_s > 0:
            return wait_s
        for bucket, at in zip(buckets, due, strict=True):
            key = (bucket.kind, bucket.whom)
            self._due_at[key] = at + bucket.interval_s
            self._due_at.move_to_end(key)
        while len(self._due_at) > _MAX_KEPT:
            self._due_at.popitem(last=False)
        return 0.0


def _of_account(name: str) -> Bucket:
    # What a stranger typed is kept for as long as it is counted: no more of it than a name has.
    return Bucket("account", name[:_NAME_CHARS], ACCOUNT_BURST, ACCOUNT_INTERVAL_S)


def _of_place(place: str) -> Bucket:
    return Bucket("account-at", place, ACCOUNT_BURST, ACCOUNT_INTERVAL_S)


def _place(account: str, address: str | None) -> str:
    return f"{account[:_NAME_CHARS]}\0{counted_as(address or '')}"


def _of_address(address: str | None) -> Bucket:
    return Bucket("address", counted_as(address or ""), ADDRESS_BURST, ADDRESS_INTERVAL_S)
