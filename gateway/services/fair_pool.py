"""A few threads for what would hold the event loop, shared fairly between tenants.

What is large is decoded, rendered, tokenised and encoded here. Work waits in a queue of its tenant.
No tenant has all threads, so that another's work need not wait for one that rests on its thread. A
thread that is free goes to the organisation with the least running here, then to the one whose next
work has the earliest start tag: work starts, in the time of the threads, where its last one ended
or where the one begun last did, whichever is later. Among its tenants it goes on likewise, and of
equals to who had a thread longest ago; a tenant of no organisation is its own. So who sends a
thousand large bodies, as one tenant or as many, delays another's by what runs, not by what waits,
and nobody saves time up by pausing. Source: start-time fair queueing, Goyal et al., SIGCOMM 1996.

Threads: all of this runs on the event loop but the work itself. Python code in a thread lets the
loop go on within `sys.getswitchinterval`; a single call into C that keeps the interpreter does not,
so what is handed over must be made of short ones. Where it is not, as in decoding, the tenant rests
for some times as long before its next work begins: each short call that another thread makes
outside of the interpreter is followed by a wait to come back in.

Failures: what waits is bounded in bytes, for a tenant and in all, and less of a tenant where many
wait (see `gateway.domain.shared_room`); beyond it is refused at once. Work whose caller has left is
not begun.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.domain.shared_room import SharedRoom
from gateway.errors import Overloaded, TenantLimited

R = TypeVar("R")

NUM_THREADS: Final = 2
MAX_WAITING_BYTES: Final = 256 << 20
MAX_TENANT_BYTES: Final = 32 << 20
_RETRY_AFTER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Work:
    call: Callable[[], Any]  # what it returns is the caller's to know
    done: asyncio.Future[Any]
    size_bytes: int
    rest_ratio: float
    owner_id: UUID  # its tenant's organisation, or its tenant


class FairPool:
    """Run work on threads; `close` once nothing more is asked of it.

    `clock` is read in the thread, before and after the work: what tenants are charged for, and what
    `on_used` is told. `owner_of` names a tenant's organisation, or the tenant where it is of none.
    """

    def __init__(
        self,
        num_threads: int = NUM_THREADS,
        *,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
        clock: Callable[[], float] = time.thread_time,
        on_used: Callable[[UUID, float], None] | None = None,
        owner_of: Callable[[UUID], UUID] = lambda tenant_id: tenant_id,
    ) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="fair-pool")
        self._num_idle = num_threads
        self._max_running = max(1, num_threads - 1)
        self._clock = clock
        self._on_used = on_used
        self._owner_of = owner_of
        self._waiting: dict[UUID, deque[_Work]] = {}
        self._room = SharedRoom(max_waiting_bytes, of_tenant=max_tenant_bytes, owner_of=owner_of)
        self._running: defaultdict[UUID, int] = defaultdict(int)
        self._running_of: defaultdict[UUID, int] = defaultdict(int)
        # Where the next work of each organisation starts, and of each tenant, in seconds of the
        # threads' time; those in the past are forgotten.
        self._start_s: dict[UUID, float] = {}
        self._own_start_s: dict[UUID, float] = {}
        self._now_s = 0.0
        # Which beginning was each waiting tenant's last.
        self._num_begun = 0
        self._begun_at: dict[UUID, int] = {}
        # Until when a tenant's next work waits, in the loop's time.
        self._rests_until_s: dict[UUID, float] = {}
        self._waker: asyncio.TimerHandle | None = None

    async def run(
        self,
        tenant_id: UUID,
        work: Callable[[], R],
        *,
        size_bytes: int = 0,
        rest_ratio: float = 0.0,
    ) -> R:
        """Return what `work` returns, once its turn has come; `size_bytes` is what waits with it.

        The tenant's next work begins `rest_ratio` times as long after it as it took.
        Raises: `TenantLimited`, `Overloaded`: as much as may wait does already, of this tenant or
        in all (nothing of size 0 is refused); what `work` raises.
        """
        self._check_room(tenant_id, size_bytes)
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(
            _Work(work, done, size_bytes, rest_ratio, self._owner_of(tenant_id))
        )
        self._room.take(tenant_id, size_bytes)
        self._begin()
        return await done

    def close(self) -> None:
        """Begin nothing more; what waits is cancelled."""
        for queue in self._waiting.values():
            for work in queue:
                work.done.cancel()
        self._waiting.clear()
        if self._waker is not None:
            self._waker.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _check_room(self, tenant_id: UUID, size_bytes: int) -> None:
        if size_bytes <= self._room.left(tenant_id):
            return
        if self._room.is_above_its_own(tenant_id, size_bytes):
            raise TenantLimited(
                "Too many large requests of this tenant wait to be read.",
                retry_after_s=_RETRY_AFTER_S,
                limit="tenant.pool",
            )
        raise Overloaded("Too many large requests wait.", retry_after_s=_RETRY_AFTER_S)

    def _begin(self) -> None:
        """Give idle threads to those whose turn it is."""
        while self._num_idle and (ready := self._ready()):
            tenant_id = min(ready, key=self._turn)
            queue = self._waiting[tenant_id]
            work = queue.popleft()
            if not queue:
                del self._waiting[tenant_id]
            self._room.give_back(tenant_id, work.size_bytes)
            if work.done.cancelled():
                self._forget_idle(tenant_id)
                continue
            self._now_s = max(self._now_s, self._start_s.get(work.owner_id, 0.0))
            self._num_idle -= 1
            self._running[tenant_id] += 1
            self._running_of[work.owner_id] += 1
            self._num_begun += 1
            self._begun_at[tenant_id] = self._num_begun
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._executor, self._timed, work.call)
            running.add_done_callback(partial(self._end, tenant_id, work))

    def _ready(self) -> list[UUID]:
        """Return who waits, does not rest and has not all threads but one already.

        Where nobody does, look again once a rest is over.
        """
        if not self._rests_until_s:
            return [tenant for tenant in self._waiting if self._has_turn(tenant)]
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._rests_until_s = {
            tenant: until_s for tenant, until_s in self._rests_until_s.items() if until_s > now_s
        }
        resting = [tenant for tenant in self._waiting if tenant in self._rests_until_s]
        ready = [
            tenant
            for tenant in self._waiting
            if tenant not in self._rests_until_s and self._has_turn(tenant)
        ]
        if resting and not ready:
            if self._waker is not None:
                self._waker.cancel()
            wake_s = min(self._rests_until_s[tenant] for tenant in resting)
            self._waker = loop.call_at(wake_s, self._begin)
        return ready

    def _has_turn(self, tenant_id: UUID) -> bool:
        """Tell whether a thread is left to others: answers that are shaped rest on theirs."""
        return self._running.get(tenant_id, 0) < self._max_running

    def _turn(self, tenant_id: UUID) -> tuple[float, ...]:
        owner_id = self._waiting[tenant_id][0].owner_id
        return (
            self._running_of[owner_id],
            max(self._start_s.get(owner_id, 0.0), self._now_s),
            self._running[tenant_id],
            max(self._own_start_s.get(tenant_id, 0.0), self._now_s),
            self._begun_at.get(tenant_id, 0),
        )

    def _timed(self, call: Callable[[], R]) -> tuple[R | None, Exception | None, float]:
        began_s = self._clock()
        try:
            return call(), None, self._clock() - began_s
        except Exception as exc:
            return None, exc, self._clock() - began_s

    def _end(self, tenant_id: UUID, work: _Work, ran: asyncio.Future[Any]) -> None:
        self._num_idle += 1
        self._running[tenant_id] -= 1
        self._running_of[work.owner_id] -= 1
        if ran.cancelled():
            work.done.cancel()
            return
        result, error, took_s = ran.result()
        if self._on_used is not None:
            self._on_used(tenant_id, took_s)
        for start_s, whose in ((self._start_s, work.owner_id), (self._own_start_s, tenant_id)):
            start_s[whose] = max(start_s.get(whose, 0.0), self._now_s) + took_s
        if work.rest_ratio:
            rest_s = work.rest_ratio * took_s
            self._rests_until_s[tenant_id] = asyncio.get_running_loop().time() + rest_s
        if not work.done.done():
            if error is None:
                work.done.set_result(result)
            else:
                work.done.set_exception(error)
        self._forget_idle(tenant_id)
        self._begin()

    def _forget_idle(self, tenant_id: UUID) -> None:
        """Keep of tenants that have nothing here only where their next work starts ahead of now."""
        if tenant_id in self._waiting or self._running[tenant_id]:
            return
        self._running.pop(tenant_id, None)
        self._begun_at.pop(tenant_id, None)
        self._running_of = defaultdict(int, {o: n for o, n in self._running_of.items() if n})
        self._start_s = self._ahead(self._start_s)
        self._own_start_s = self._ahead(self._own_start_s)

    def _ahead(self, start_s: dict[UUID, float]) -> dict[UUID, float]:
        return {whose: at for whose, at in start_s.items() if at > self._now_s}
