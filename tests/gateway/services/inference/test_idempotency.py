"""Claims of keyed requests, as the store is asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from gateway.credentials import Secrets
from gateway.domain.idempotency import Claim, KeyedRecord, SealedAnswer
from gateway.services.inference.idempotency import CLAIMS_OF_TENANT, IdempotencyService

pytestmark = pytest.mark.anyio

ACME, GLOBEX = UUID(int=1), UUID(int=2)


class SlowStore:
    """Implement `IdempotencyStore`: a claim is answered once `gate` is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[UUID] = []

    async def claim(
        self, claim: Claim, body_hash: bytes, *, lease_s: float, keep_s: float
    ) -> KeyedRecord | None:
        self.asked.append(claim.tenant_id)
        await self.gate.wait()
        return None

    async def renew(self, claims: Sequence[Claim], *, lease_s: float) -> None: ...

    async def save(self, claim: Claim, answer: SealedAnswer) -> bool:
        return True

    async def release(self, claim: Claim) -> None: ...

    async def sweep(self, limit: int) -> int:
        return 0


def claim_of(tenant_id: UUID) -> Claim:
    return Claim(tenant_id, tenant_id, uuid4().hex, uuid4())


async def test_many_claims_of_a_tenant_leave_the_store_to_others() -> None:
    """Some of its own are asked for at once, the rest in turn; another's is asked for beside."""
    store = SlowStore()
    service = IdempotencyService(store, Secrets(b"r" * 32))
    tenants = [*[ACME] * 20, GLOBEX]
    claims = [asyncio.create_task(service.claim(claim_of(tenant), b"")) for tenant in tenants]
    while GLOBEX not in store.asked:
        await asyncio.sleep(0)
    assert store.asked.count(ACME) == CLAIMS_OF_TENANT
    store.gate.set()
    assert await asyncio.gather(*claims) == [None] * 21
    assert store.asked.count(ACME) == 20
