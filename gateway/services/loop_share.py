"""A fair share of the event loop: who uses much of it begins its next thing later.

All requests take turns on one loop, and each of the thirty or so steps of one waits for whatever is
ready of everybody. So the time for which a tenant's requests hold the loop is measured, step by
step (`charged`), as is what its work on threads takes of the interpreter. Before one of its
requests begins, before more of a body is read and before the next input of a list for embeddings
(`turn`), a tenant that is ahead of its share waits, in a queue of its own. It waits nowhere else:
what has begun holds connections and places that others need. A request whose client left meanwhile
ends as soon as it looks.

Others present, a tenant's share is what these leave of `TOGETHER` and an equal part of that at
least, but never more than `ALONE`. Tenants of one organisation have one such part between them: a
tenant of none is its own. Nobody waits who has the loop to itself.

Source: the generic cell rate algorithm, ATM Forum TM 4.0, in seconds of the loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.errors import TenantLimited

R = TypeVar("R")

# Of the loop's time: one tenant beside others, and all of them. The rest is for what nobody is
# charged for: accepting, parsing, the ledger, delivering what the engine computed.
ALONE: Final = 0.4
TOGETHER: Final = 0.8
# What a tenant may be ahead by: a request or two.
_BURST_S: Final = 0.01
# What a step is charged at most. None of ours computes for longer but now and then; one that takes
# longer stood still, for the interpreter, a lock or the machine, which is as likely to meet who
# uses little. One such step is a burst.
_LONGEST_S: Final = ALONE * _BURST_S
# What was used is forgotten with this time constant.
_MEMORY_S: Final = 1.0
# Who did nothing for so long is not present; how often tenants are counted.
_AWAY_S: Final = 10.0
_COUNT_EVERY_S: Final = 0.25
MAX_WAITING: Final = 1024
_RETRY_AFTER_S: Final = 1.0


class LoopShare:
    """Hold tenants to their shares of the running event loop; `clock` gives seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self.clock = clock
        self.max_waiting = max_waiting
        self._used = _Used(clock())
        self._accounts: dict[UUID, LoopAccount] = {}
        # How many tenants are present of each organisation, and of none.
        self._num_of: Counter[UUID] = Counter()
        self._count_at = clock()

    def of(self, tenant_id: UUID, org_id: UUID | None = None) -> LoopAccount:
        """Return a tenant's account, once it is told in its organisation."""
        account = self._accounts.get(tenant_id)
        if account is None:
            account = self._accounts[tenant_id] = LoopAccount(self, org_id or tenant_id)
            self._num_of[account.owner_id] += 1
        elif org_id is not None:
            account.owner_id = org_id
        return account

    def owner_of(self, tenant_id: UUID) -> UUID:
        """Name a tenant's organisation, or the tenant where it is of none or was never told of."""
        account = self._accounts.get(tenant_id)
        return tenant_id if account is None else account.owner_id

    def charge(self, tenant_id: UUID, seconds: float) -> None:
        """Count what a tenant's work has just taken on a thread."""
        self.of(tenant_id).charge(seconds)

    def note(self, seconds: float, now: float) -> bool:
        """Count what all use, and tell whether more than one is present; for `LoopAccount`."""
        self._used.add(seconds, now)
        if now >= self._count_at:
            self._count_at = now + _COUNT_EVERY_S
            self._accounts = {
                id_: one for id_, one in self._accounts.items() if one.is_present(now)
            }
            self._num_of = Counter(one.owner_id for one in self._accounts.values())
        return len(self._accounts) > 1

    def rate(self, own: float, now: float, owner_id: UUID) -> float:
        """Say what part of the loop's time one of several may have that uses `own`."""
        others = self._used.rate(now) - own
        num_parts = len(self._num_of) * max(1, self._num_of[owner_id])
        return min(ALONE, max(TOGETHER - others, TOGETHER / num_parts))


class LoopAccount:
    """Know what one tenant has used, and let its next thing begin when that is paid off.

    `owner_id` is its organisation, or itself where it is of none.
    """

    def __init__(self, share: LoopShare, owner_id: UUID) -> None:
        self._share = share
        self.owner_id = owner_id
        self._used = _Used(share.clock())
        self._seen_at = share.clock()
        self._paid_at = self._seen_at - _BURST_S
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def is_present(self, now: float) -> bool:
        """Tell whether it waits, owes or did anything lately."""
        return bool(self._waiting) or max(self._paid_at, self._seen_at + _AWAY_S) > now

    def charge(self, seconds: float) -> None:
        """Count time for which the loop, or the interpreter, was just held."""
        self._charge(seconds, self._share.clock())

    def _charge(self, seconds: float, now: float) -> None:
        share = self._share
        self._seen_at = now
        self._used.add(seconds, now)
        if share.note(seconds, now):
            rate = share.rate(self._used.rate(now), now, self.owner_id)
            self._paid_at = max(self._paid_at, now - _BURST_S) + seconds / rate

    async def turn(self) -> None:
        """Wait while the tenant is ahead of its share.

        Raises: `TenantLimited`: too much of it waits already.
        """
        if not self._waiting and self._paid_at <= self._share.clock():
            return
        if len(self._waiting) >= self._share.max_waiting:
            raise TenantLimited(
                "Too many requests of this tenant wait to begin.",
                retry_after_s=_RETRY_AFTER_S,
                limit="tenant.event_loop",
            )
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if self._timer is None:
            self._look_later()
        await waiter

    async def charged(self, work: Awaitable[R]) -> R:
        """Do `work`, and charge the tenant for each of its steps."""
        _ACCOUNT.set(self)
        result: R = await _Steps(self, work)
        return result

    def step(self, resume: Callable[[Any], Any], value: Any) -> Any:
        """Resume work up to where it waits next, and charge for it, up to `_LONGEST_S`."""
        clock = self._share.clock
        began_s = clock()
        try:
            return resume(value)
        finally:
            now = clock()
            self._charge(min(now - began_s, _LONGEST_S), now)

    def _look_later(self) -> None:
        wait_s = max(self._paid_at - self._share.clock(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._let_one_begin)

    def _let_one_begin(self) -> None:
        """Wake who came first and still waits; the next one after that was charged for."""
        self._timer = None
        waiting = self._waiting
        is_paid = self._paid_at <= self._share.clock()
        while waiting and is_paid:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                is_paid = False
        if waiting:
            self._look_later()


# Whose work this is; what it starts inherits it.
_ACCOUNT: ContextVar[LoopAccount | None] = ContextVar("loop_account", default=None)


async def turn() -> None:
    """Wait for the turn of the tenant whose work this is. Raises: as `LoopAccount.turn`."""
    account = _ACCOUNT.get()
    if account is not None:
        await account.turn()


async def charged(work: Awaitable[R]) -> R:
    """Do `work`, for a task of its own, at the expense of the tenant whose work this is."""
    account = _ACCOUNT.get()
    return await (work if account is None else account.charged(work))


class _Steps:
    """Await a coroutine by hand, one step at a time."""

    __slots__ = ("_account", "_work")

    def __init__(self, account: LoopAccount, work: Awaitable[Any]) -> None:
        self._account = account
        self._work = work

    def __await__(self) -> Generator[Any, None, Any]:
        step, steps = self._account.step, self._work.__await__()
        resume, value = steps.send, None
        while True:
            try:
                awaited = step(resume, value)
            except StopIteration as end:
                return end.value
            try:
                value, resume = (yield awaited), steps.send
            except BaseException as exc:
                value, resume = exc, steps.throw


class _Used:
    """Know what part of the time was used lately."""

    __slots__ = ("_at", "_used_s")

    def __init__(self, now: float) -> None:
        self._used_s, self._at = 0.0, now

    def add(self, seconds: float, now: float) -> None:
        self._used_s = self._used_s * math.exp((self._at - now) / _MEMORY_S) + seconds
        self._at = now

    def rate(self, now: float) -> float:
        return self._used_s * math.exp((self._at - now) / _MEMORY_S) / _MEMORY_S
