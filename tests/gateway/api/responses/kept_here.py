"""A fake of the port that stores responses, which a test can take away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from gateway.domain.stored_response import SealedResponse
from gateway.errors import StoreUnavailable


class KeptHere:
    """Implement `ResponseStore` in memory."""

    def __init__(self) -> None:
        self.rows: dict[tuple[UUID, UUID], SealedResponse] = {}
        self.is_away = False
        self.delay_s = 0.0
        self.num_asked = 0
        self.most_at_once = 0
        self._at_once = 0
        self.trimmed: list[tuple[UUID, int, int]] = []

    async def save(self, response: SealedResponse) -> bool:
        await self._answer()
        self.rows[response.tenant_id, response.id] = response
        return True

    async def get(self, tenant_id: UUID, response_id: UUID) -> SealedResponse | None:
        await self._answer()
        return self.rows.get((tenant_id, response_id))

    async def chain(
        self, tenant_id: UUID, response_id: UUID, limit: int
    ) -> Sequence[SealedResponse]:
        await self._answer()
        found: list[SealedResponse] = []
        at: UUID | None = response_id
        while at is not None and (tenant_id, at) in self.rows and len(found) < limit:
            found.insert(0, self.rows[tenant_id, at])
            at = found[0].previous_id
        return found

    async def delete(self, tenant_id: UUID, response_id: UUID) -> bool:
        await self._answer()
        return self.rows.pop((tenant_id, response_id), None) is not None

    async def trim(self, tenant_id: UUID, *, max_rows: int, max_bytes: int) -> int:
        self.trimmed.append((tenant_id, max_rows, max_bytes))
        return 0

    async def _answer(self) -> None:
        self.num_asked += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self._at_once -= 1
        if self.is_away:
            raise StoreUnavailable
