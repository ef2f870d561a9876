"""Batches of all tenants, as administrators see them; tenants have the API for their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from gateway.domain.batch import Batch, ErrorGroup, LineError, NamedBatch
from gateway.domain.page import Page, PageRequest
from gateway.errors import NotFound
from gateway.ports import BatchListStore
from gateway.services.admin.tenants import TenantService

# Of a batch's failed items as many are looked at.
MAX_ERRORS: Final = 10_000


class BatchListService:
    """List batches for an admin; who may call this is decided above."""

    def __init__(self, batches: BatchListStore, tenants: TenantService) -> None:
        self._batches = batches
        self._tenants = tenants

    async def page(
        self, request: PageRequest, *, tenant: str | None = None, is_open: bool | None = None
    ) -> Page[NamedBatch]:
        """Return batches, the newest first; `tenant` names whose, `is_open` those not ended.

        Raises: `NotFound`: no such tenant; `InvalidRequest`: the cursor.
        """
        organisation = await self._tenants.organisation()
        tenant_id = None if tenant is None else await self._tenants.id_of(tenant)
        return await self._batches.page_of_all(
            organisation.id, request, tenant_id=tenant_id, is_open=is_open
        )

    async def get(self, batch_id: UUID, *, within: UUID | None = None) -> NamedBatch:
        """Return a batch of any tenant, or of the one that `within` names. Raises: `NotFound`."""
        organisation = await self._tenants.organisation()
        found = await self._batches.get_of_all(organisation.id, batch_id)
        if found is None or within not in (None, found.batch.tenant_id):
            raise NotFound("There is no such batch.")
        return found

    async def errors(self, batch: Batch) -> Sequence[ErrorGroup]:
        """Group what is wrong with a batch by cause: its input's errors, or its failed items'.

        Results of items are kept until the batch has ended; then they are in its error file.
        """
        if batch.errors:
            return _grouped(batch.errors)
        if not batch.num_failed or batch.ended_at is not None:
            return []
        return await self._batches.error_groups(batch.id, limit=MAX_ERRORS)


def _grouped(errors: Sequence[LineError]) -> list[ErrorGroup]:
    of_code: defaultdict[str, list[LineError]] = defaultdict(list)
    for error in errors:
        of_code[error.code].append(error)
    groups = [
        ErrorGroup(code, some[0].message, len(some), min(one.line or 0 for one in some))
        for code, some in of_code.items()
    ]
    return sorted(groups, key=lambda group: (-group.number, group.code))
