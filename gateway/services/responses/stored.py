"""Keep responses in the database, and read chains of them.

A response is stored when it is whole, before its last event is sent: whoever has seen the end can
go on from it, at any gateway. All of the text has been sent by then, and no connection is held
while a client reads. The answer waits for `SAVE_S` at most; what is not stored by then, or not at
all because the database is away, says `store: false`. For a while after that nothing is tried:
who asks for storing in so many words is refused before anything is computed, and others are
answered without.

Bounds: a response has `MAX_RESPONSE_BYTES`, a chain `MAX_CHAIN` responses and `MAX_CHAIN_BYTES`; a
tenant has what the settings say, of which its oldest go first. A tenant stores or reads one at a
time, and all of them together take `MAX_AT_ONCE` connections.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from gateway.credentials import Secrets
from gateway.domain.stored_response import Chain, SealedResponse
from gateway.errors import InvalidRequest, ResponseNotFound, StoreUnavailable
from gateway.ports import ResponseStore
from gateway.services.fair_pool import FairPool
from gateway.services.responses.seal import ANSWER, SENT, Seal

logger = logging.getLogger(__name__)

MAX_CHAIN: Final = 1000
MAX_CHAIN_BYTES: Final = 4 << 20
MAX_RESPONSE_BYTES: Final = 4 << 20
MAX_AT_ONCE: Final = 3
SAVE_S: Final = 1.0
AWAY_S: Final = 5.0
# Of its bounds, what a tenant may store before it is looked whether they are passed.
_TRIM_PART: Final = 16
# So much is encoded and encrypted where it stands, in a millisecond.
_FEW_BYTES: Final = 64 << 10

T = TypeVar("T")


class _Answer(msgspec.Struct):
    output: list[dict[str, Any]]


_items: Final = msgspec.json.Decoder(list[dict[str, Any]])
_answer: Final = msgspec.json.Decoder(_Answer)


class StoredResponses:
    """Keep, read and delete responses, each tenant its own."""

    def __init__(
        self,
        store: ResponseStore,
        secrets: Secrets,
        pool: FairPool,
        *,
        max_tenant_bytes: int,
        max_tenant_rows: int,
        clock: Callable[[], float] = time.monotonic,
        save_s: float = SAVE_S,
    ) -> None:
        self._store = store
        self._seal = Seal(secrets)
        self._pool = pool
        self._max_bytes, self._max_rows = max_tenant_bytes, max_tenant_rows
        self._clock = clock
        self._save_s = save_s
        self._away_until_s = 0.0
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._turns: defaultdict[UUID, _Waiting] = defaultdict(_Waiting)
        self._untrimmed: dict[UUID, tuple[int, int]] = {}
        self._trimming: set[asyncio.Task[None]] = set()

    def require(self) -> None:
        """Raise `StoreUnavailable` while the database is known not to answer."""
        left_s = self._away_until_s - self._clock()
        if left_s > 0:
            raise StoreUnavailable(
                "Responses cannot be stored for now; send 'store': false to do without.",
                param="store",
                retry_after_s=left_s,
            )

    async def keep(
        self, tenant_id: UUID, response_id: UUID, chain: Chain, sent: Any, answer: msgspec.Struct
    ) -> bool:
        """Store a response; False: it is not, or not for sure where the database was too slow."""
        if self._away_until_s > self._clock():
            return False
        asking = _Asking()
        try:
            async with asyncio.timeout(self._save_s):
                return await self._keep(tenant_id, response_id, chain, sent, answer, asking)
        except (StoreUnavailable, TimeoutError) as exc:
            # Not where a tenant has waited for its own turn, and had little of the time left.
            if asking.took_s() >= (self._save_s / 2 if isinstance(exc, TimeoutError) else 0):
                self._away_until_s = self._clock() + AWAY_S
            logger.warning("response %s is not stored: %s", response_id, exc or "too late")
            return False

    async def get(self, tenant_id: UUID, response_id: UUID) -> bytes:
        """Return a response as JSON. Raises: `ResponseNotFound`, `StoreUnavailable`."""
        row = await self._row(tenant_id, response_id)
        return self._seal.opened(tenant_id, row.id, ANSWER, row.answer)

    async def sent(self, tenant_id: UUID, response_id: UUID) -> list[dict[str, Any]]:
        """Return the items that a response was asked with. Raises: as `get`."""
        row = await self._row(tenant_id, response_id)
        plain = self._seal.opened(tenant_id, row.id, SENT, row.sent)
        return await self._worked(tenant_id, len(plain), partial(_items.decode, plain))

    async def delete(self, tenant_id: UUID, response_id: UUID) -> None:
        """Delete a response; those that go on from it cannot be gone on from any more.

        Raises: as `get`.
        """
        async with self._turn(tenant_id):
            if not await self._store.delete(tenant_id, response_id):
                raise ResponseNotFound

    async def chain(
        self, tenant_id: UUID, previous_id: UUID, take: Callable[[int], None] = lambda _: None
    ) -> Chain:
        """Return what a response goes on from; `take` is told its bytes before they are read.

        Raises: what `take` does; `ResponseNotFound`: it, or one that it goes on from, is not there;
        `InvalidRequest`: the chain is too long; `StoreUnavailable`.
        """
        param = "previous_response_id"
        async with self._turn(tenant_id):
            last = await self._store.get(tenant_id, previous_id)
            if last is None:
                raise ResponseNotFound(param=param, code="previous_response_not_found")
            if last.depth >= MAX_CHAIN or last.chain_bytes >= MAX_CHAIN_BYTES:
                raise InvalidRequest(
                    f"A chain has up to {MAX_CHAIN} responses of {MAX_CHAIN_BYTES >> 20} MiB in "
                    "all; begin a new one with what it needs to know as input.",
                    param=param,
                    code="chain_too_long",
                )
            take(last.chain_bytes)
            rows = [last]
            if last.previous_id is not None:
                rows = [*await self._store.chain(tenant_id, last.previous_id, MAX_CHAIN), last]
        if len(rows) != last.depth:
            raise ResponseNotFound(
                "A response that this one goes on from is not stored any more.",
                param=param,
                code="previous_response_not_found",
            )
        opened = partial(self._opened, rows)
        items = await self._worked(tenant_id, last.chain_bytes, opened)
        return Chain(previous_id, last.depth, last.chain_bytes, items)

    async def _keep(
        self,
        tenant_id: UUID,
        response_id: UUID,
        chain: Chain,
        sent: Any,
        answer: msgspec.Struct,
        asking: _Asking,
    ) -> bool:
        encoded = msgspec.json.encode(sent), msgspec.json.encode(answer)
        size_bytes = sum(map(len, encoded))
        if size_bytes > MAX_RESPONSE_BYTES:
            return False
        row = await self._worked(
            tenant_id, size_bytes, partial(self._sealed, tenant_id, response_id, chain, *encoded)
        )
        async with self._turn(tenant_id):
            asking.began_s = time.monotonic()
            is_kept = await self._store.save(row)
        if is_kept:
            self._count(tenant_id, row.num_bytes)
        return is_kept

    def _sealed(
        self, tenant_id: UUID, response_id: UUID, chain: Chain, sent: bytes, answer: bytes
    ) -> SealedResponse:
        parts = [
            self._seal.sealed(tenant_id, response_id, part, plain)
            for part, plain in ((SENT, sent), (ANSWER, answer))
        ]
        size_bytes = chain.num_bytes + sum(map(len, parts))
        return SealedResponse(
            response_id, tenant_id, chain.previous_id, chain.depth + 1, size_bytes, *parts
        )

    def _opened(self, rows: list[SealedResponse]) -> list[dict[str, Any]]:
        """Return the items of some responses, what was sent before what was answered."""
        items: list[dict[str, Any]] = []
        for row in rows:
            opened = partial(self._seal.opened, row.tenant_id, row.id)
            items += _items.decode(opened(SENT, row.sent))
            items += _answer.decode(opened(ANSWER, row.answer)).output
        return items

    async def _row(self, tenant_id: UUID, response_id: UUID) -> SealedResponse:
        async with self._turn(tenant_id):
            row = await self._store.get(tenant_id, response_id)
        if row is None:
            raise ResponseNotFound
        return row

    async def _worked(self, tenant_id: UUID, size_bytes: int, work: Callable[[], T]) -> T:
        if size_bytes <= _FEW_BYTES:
            return work()
        return await self._pool.run(tenant_id, work, size_bytes=size_bytes)

    @asynccontextmanager
    async def _turn(self, tenant_id: UUID) -> AsyncIterator[None]:
        """Wait for a tenant's turn, and for one of the connections."""
        waiting = self._turns[tenant_id]
        waiting.number += 1
        try:
            async with waiting.lock, self._at_once:
                yield
        finally:
            waiting.number -= 1
            if not waiting.number:
                self._turns.pop(tenant_id, None)

    def _count(self, tenant_id: UUID, num_bytes: int) -> None:
        """Look after a tenant's bounds, in the background, once it has stored a part of them."""
        rows, size_bytes = self._untrimmed.get(tenant_id, (0, 0))
        rows, size_bytes = rows + 1, size_bytes + num_bytes
        self._untrimmed[tenant_id] = rows, size_bytes
        if rows * _TRIM_PART < self._max_rows and size_bytes * _TRIM_PART < self._max_bytes:
            return
        self._untrimmed.pop(tenant_id)
        task = asyncio.create_task(self._trim(tenant_id))
        self._trimming.add(task)
        task.add_done_callback(self._trimming.discard)

    async def _trim(self, tenant_id: UUID) -> None:
        try:
            async with self._turn(tenant_id):
                await self._store.trim(
                    tenant_id, max_rows=self._max_rows, max_bytes=self._max_bytes
                )
        except StoreUnavailable as exc:
            # Retention does it too.
            logger.warning("responses above a tenant's bound are left: %s", exc)


class _Waiting:
    """Hold a tenant's lock while somebody waits for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.number = 0


class _Asking:
    """Tell for how long the database has been asked, below 0 where it was not."""

    began_s: float | None = None

    def took_s(self) -> float:
        return -1.0 if self.began_s is None else time.monotonic() - self.began_s
