"""Requests with an `Idempotency-Key` are answered once: a retry gets the same answer.

The first to come claims its key, for the API key that sent it, and runs. While it runs, the claim
is a lease of `LEASE_S` that this process renews; a process that dies lets it pass, and the next
retry takes over. A whole answer of status 200 is kept for `KEEP_S`, encrypted; whatever else comes
of a run gives the claim back, so that a retry runs anew. An answer above `MAX_ANSWER_BYTES` is not
kept, only that it was given: to run it again would charge it again.

A run belongs to this service, not to its client: it goes on when the client leaves, for the retry
to find its answer.

Failures: without the store nothing can be promised, so a claim fails closed. An answer goes with
its bill, through the journal into the store (see `ledger.keyed_answers`), and its claim is renewed
until it is there; its client waits `_SAVE_BEFORE_ANSWER_S` for that at most, and not where the
store is known to be away. So whoever has the answer in hand can have it again: from this process at
once, from another but for an outage. A claim that is given back is tried to be for
`_GIVE_BACK_FOR_S`.

What asks the store for a claim may be handed an answer of megabytes, which keeps a connection that
bills are written over too: `CLAIMS_OF_TENANT` of a tenant's ask at once, the others wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.background import JITTER, Background
from gateway.credentials import Secrets
from gateway.domain.idempotency import KEEP_S, Answer, Claim, SealedAnswer
from gateway.errors import (
    AnswerNotKept,
    IdempotencyConflict,
    IdempotencyMismatch,
    StoreUnavailable,
)
from gateway.ports import IdempotencyStore
from gateway.services.ledger import KeyedAnswers

logger = logging.getLogger(__name__)

LEASE_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 4 << 20
CLAIMS_OF_TENANT: Final = 2

RENEW_EVERY_S: Final = LEASE_S / 4
SWEEP_EVERY_S: Final = 3600.0
_SWEEP_ROWS: Final = 1000
_RETRY_AFTER_S: Final = 1.0
_CLAIM_PATIENCE_S: Final = 5.0
_SAVE_BEFORE_ANSWER_S: Final = 5.0
_GIVE_BACK_FOR_S: Final = 180.0
_SAVE_AGAIN_S: Final = 1.0
# For runs whose engine has stopped already to give their claims back.
_CLOSE_S: Final = 2.0
_NONCE_BYTES: Final = 12
_TOO_LARGE: Final = SealedAnswer(200, "", None)


async def _nothing_to_flush(timeout_s: float) -> bool:
    return True


class IdempotencyService:
    """Claim, keep and replay; enter `running` to renew leases and to sweep what has expired.

    `keyed` journals answers with their bills, and `flush` waits until what is journalled is stored;
    without them no run is billed, and its answer is stored alone.
    """

    def __init__(
        self,
        store: IdempotencyStore,
        secrets: Secrets,
        keyed: KeyedAnswers | None = None,
        flush: Callable[[float], Awaitable[bool]] = _nothing_to_flush,
        *,
        lease_s: float = LEASE_S,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        renew_every_s: float = RENEW_EVERY_S,
        sweep_every_s: float = SWEEP_EVERY_S,
    ) -> None:
        self._store = store
        self._cipher = AESGCM(secrets.idempotency_key)
        self._lease_s = lease_s
        self._renew_every_s = renew_every_s
        self._sweep_every_s = sweep_every_s
        self.max_answer_bytes = max_answer_bytes
        self._keyed = keyed or KeyedAnswers(lambda row: None)
        self._flush = flush
        self._tasks: set[asyncio.Task[None]] = set()
        self._claiming: defaultdict[UUID, _Claiming] = defaultdict(_Claiming)

    async def claim(self, claim: Claim, body_hash: bytes) -> Answer | None:
        """Claim a run of the request, or return the answer that it was given; None: it is ours.

        A claim must be ended by `save` or `release`. Raises: `IdempotencyConflict`: it runs;
        `IdempotencyMismatch`: the key came with another body; `AnswerNotKept`;
        `StoreUnavailable`.
        """
        record = self._keyed.find(claim)
        if record is None:
            async with self._turn(claim.tenant_id):
                record = await self._store.claim(
                    claim, body_hash, lease_s=self._lease_s, keep_s=KEEP_S
                )
        if record is None:
            self._keyed.hold(claim, body_hash)
            return None
        if record.body_hash != body_hash:
            raise IdempotencyMismatch
        if record.answer is None:
            raise IdempotencyConflict(retry_after_s=_RETRY_AFTER_S)
        return Answer(
            record.answer.status,
            record.answer.content_type,
            self._opened(claim, record.answer.sealed),
        )

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a claimed request to its end, whoever waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def save(self, claim: Claim, answer: Answer | None) -> None:
        """Keep an answer, or with None that there was one, too large to be kept.

        Returns once it is kept, or after a while; it goes on in the background then.
        """
        if answer is None:
            sealed = _TOO_LARGE
        else:
            body = self._sealed(claim, answer.body)
            sealed = SealedAnswer(answer.status, answer.content_type, body)
        if self._keyed.keep(claim, sealed):
            await self._flush(_SAVE_BEFORE_ANSWER_S)
            return
        saving = self.run(self._end(claim, lambda: self._store.save(claim, sealed)))
        await asyncio.wait([saving], timeout=_SAVE_BEFORE_ANSWER_S)

    async def release(self, claim: Claim) -> None:
        """Give a claim back: there is no answer that a retry should get."""
        self._keyed.let_go(claim)
        releasing = self.run(self._end(claim, lambda: self._store.release(claim)))
        await asyncio.wait([releasing], timeout=_SAVE_BEFORE_ANSWER_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Renew and sweep while the block runs; on leaving, end what runs."""
        name = "upkeep of idempotency records"
        try:
            async with (
                Background(name, self.renew, interval_s=self._renew_every_s),
                Background(name, self.sweep, interval_s=self._sweep_every_s, jitter=JITTER),
            ):
                yield
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CLOSE_S)
            left = list(self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._keyed.close()

    async def renew(self) -> None:
        """Prolong the leases of what runs here, and of what waits here for the store."""
        await self._store.renew(list(self._keyed.claims()), lease_s=self._lease_s)

    async def sweep(self) -> None:
        """Delete what has expired, a batch at a time."""
        while await self._store.sweep(_SWEEP_ROWS) == _SWEEP_ROWS:
            pass

    @asynccontextmanager
    async def _turn(self, tenant_id: UUID) -> AsyncIterator[None]:
        """Wait for one of a tenant's places. Raises: `StoreUnavailable`: for too long."""
        claiming = self._claiming[tenant_id]
        claiming.number += 1
        try:
            try:
                async with asyncio.timeout(_CLAIM_PATIENCE_S):
                    await claiming.places.acquire()
            except TimeoutError:
                raise StoreUnavailable(
                    detail=f"claims of tenant {tenant_id} wait for others of its own",
                    retry_after_s=_RETRY_AFTER_S,
                ) from None
            try:
                yield
            finally:
                claiming.places.release()
        finally:
            claiming.number -= 1
            if not claiming.number:
                self._claiming.pop(tenant_id, None)

    async def _end(self, claim: Claim, write: Callable[[], Awaitable[object]]) -> None:
        """Write how a run ended, again and again while the store is away.

        Given up, the lease passes and the next retry runs anew. It is no `Background`: it ends.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _GIVE_BACK_FOR_S
        try:
            while True:
                try:
                    if await write() is False:
                        logger.warning("run %s was taken over: its end is not kept", claim.run_id)
                    return
                except StoreUnavailable as exc:
                    if loop.time() > until_s:
                        logger.error("the end of run %s is not kept: %s", claim.run_id, exc)
                        return
                await asyncio.sleep(_SAVE_AGAIN_S)
        finally:
            self._keyed.forget(claim)

    def _sealed(self, claim: Claim, body: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, body, _place(claim))

    def _opened(self, claim: Claim, sealed: bytes | None) -> bytes:
        if sealed is None:
            raise AnswerNotKept
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, rest, _place(claim))
        except InvalidTag:
            raise AnswerNotKept(
                detail=f"an answer of key {claim.key_id} cannot be opened"
            ) from None


class _Claiming:
    """Hold a tenant's places while one of its claims has one or waits."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(CLAIMS_OF_TENANT)
        self.number = 0


def _place(claim: Claim) -> bytes:
    """Bind an answer to its record: one that is moved to another cannot be opened."""
    return claim.key_id.bytes + claim.idempotency_key.encode("ascii")
