"""Batches of all tenants, as administrators see them; tenants have the API for their own."""

from __future__ import annotations

from gateway.domain.batch import NamedBatch
from gateway.domain.page import Page, PageRequest
from gateway.ports import BatchListStore
from gateway.services.admin.tenants import TenantService


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
