"""Answers that are kept."""

from __future__ import annotations

from collections.abc import (
    Sequence,
)
from typing import Protocol
from uuid import UUID

from gateway.domain.idempotency import Claim, KeyedRecord, SealedAnswer
from gateway.domain.stored_response import SealedResponse


class IdempotencyStore(Protocol):
    async def claim(
        self, claim: Claim, body_hash: bytes, *, lease_s: float, keep_s: float
    ) -> KeyedRecord | None:
        """Make the record of a request, or take one over that expired or whose lease has passed.

        None: it is the caller's to run. Otherwise what is there of it, of an answer to another body
        not the answer itself.
        """
        ...

    async def renew(self, claims: Sequence[Claim], *, lease_s: float) -> None:
        """Prolong the leases of those claims that still hold."""
        ...

    async def save(self, claim: Claim, answer: SealedAnswer) -> bool:
        """Keep an answer; False where the claim was taken over."""
        ...

    async def release(self, claim: Claim) -> None:
        """Delete the record if the claim still holds."""
        ...

    async def sweep(self, limit: int) -> int:
        """Delete expired records, at most so many, and return how many."""
        ...


class ResponseStore(Protocol):
    """Keep responses; a tenant sees its own."""

    async def save(self, response: SealedResponse) -> bool:
        """Store a response; False where its tenant is archived."""
        ...

    async def get(self, tenant_id: UUID, response_id: UUID) -> SealedResponse | None:
        """Return a response; None: the tenant has none with this id."""
        ...

    async def chain(
        self, tenant_id: UUID, response_id: UUID, limit: int
    ) -> Sequence[SealedResponse]:
        """Return a response and those that it goes on from, the first first, as far as they are
        there, and at most so many."""
        ...

    async def delete(self, tenant_id: UUID, response_id: UUID) -> bool:
        """Delete a response; False: there was none."""
        ...

    async def trim(self, tenant_id: UUID, *, max_rows: int, max_bytes: int) -> int:
        """Delete a tenant's oldest above its bounds; return how many."""
        ...
