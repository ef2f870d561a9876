"""Records of finished requests as admins read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from gateway.domain.page import Page, PageRequest
from gateway.domain.request_record import RecordFilter, RequestRecord
from gateway.errors import NotFound
from gateway.ports import RequestRecordStore
from gateway.services.admin.tenants import TenantService


class RequestRecordService:
    """Show records for an admin; who may call this is decided above, `within` bounds whose."""

    def __init__(self, records: RequestRecordStore, tenants: TenantService) -> None:
        self._records = records
        self._tenants = tenants

    async def get(self, request_id: UUID, *, within: UUID | None = None) -> RequestRecord:
        """Return one request's record; one `within` a tenant tells of its own times alone.

        Raises: `NotFound`: there is none, or no longer.
        """
        organisation = await self._tenants.organisation()
        record = await self._records.get(organisation.id, request_id, within=within)
        if record is None:
            raise NotFound(
                "There is no record of such a request: of requests that went well a share is kept, "
                "and of any for a day.",
                param="id",
            )
        if within is not None:
            record = replace(record, details=_own(record.details))
        return record

    async def page(
        self,
        chosen: RecordFilter,
        request: PageRequest,
        *,
        tenant: str | None = None,
        within: UUID | None = None,
    ) -> Page[RequestRecord]:
        """Return records, the newest first; `tenant` names whose.

        Raises: `NotFound`: no such tenant; `InvalidRequest`: the cursor.
        """
        organisation = await self._tenants.organisation()
        if tenant is not None:
            tenant_id = await self._tenants.id_of(tenant, within=within)
            chosen = replace(chosen, tenant_id=tenant_id)
        return await self._records.page(organisation.id, chosen, request, within=within)


def _own(details: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what tells of the queue and of others' prompts."""
    own = {name: value for name, value in details.items() if name != "sentence"}
    for moments in ("phases", "remarks"):
        own[moments] = [{**one, "detail": {}} for one in details.get(moments, ())]
    own["generations"] = [
        {name: value for name, value in one.items() if name not in ("num_ahead", "waits_s")}
        for one in details.get("generations", ())
    ]
    return own
