"""The audit log as admins read it, and as changes without a store of their own write it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from uuid import UUID

from gateway.domain.admin import (
    Actor,
    AuditEntry,
    AuditFilter,
    AuditHead,
    AuditRecord,
    AuditVerdict,
)
from gateway.domain.page import Page, PageRequest
from gateway.errors import StoreUnavailable
from gateway.ports import AuditStore, HeadKeeper
from gateway.services.admin.tenants import TenantService

logger = logging.getLogger(__name__)


class AuditService:
    """Show and verify the organisation's audit log; who may call this is decided above."""

    def __init__(self, log: AuditStore, tenants: TenantService, kept_heads: HeadKeeper) -> None:
        self._log = log
        self._tenants = tenants
        self._kept_heads = kept_heads
        self._walking = asyncio.Lock()

    async def page(
        self,
        chosen: AuditFilter,
        request: PageRequest,
        *,
        tenant: str | None = None,
        within: UUID | None = None,
    ) -> Page[AuditRecord]:
        """Return records, the newest first; `tenant` names whose, `within` bounds whose.

        Who is bound to a tenant is not told where its operators work from.
        Raises: `NotFound`: no such tenant; `InvalidRequest`: the cursor.
        """
        organisation = await self._tenants.organisation()
        tenant_id = within
        if tenant is not None:
            tenant_id = await self._tenants.id_of(tenant, within=within)
        chosen = replace(chosen, tenant_id=tenant_id)
        page = await self._log.page(organisation.id, chosen, request)
        return page if within is None else Page(list(map(_of_tenant, page.data)), page.next)

    async def head(self) -> AuditHead | None:
        """Return the place of the newest record."""
        return await self._log.head((await self._tenants.organisation()).id)

    async def verify(self, published: AuditHead | None = None) -> AuditVerdict:
        """Walk the organisation's chain, by way of a head from before and of this machine's.

        One walks at a time: it takes seconds, and a connection that reports would have.
        """
        organisation = await self._tenants.organisation()
        kept = self._kept_heads.read(organisation.id)
        heads = [head for head in (published, kept) if head is not None]
        async with self._walking:
            return await self._log.verify(organisation.id, heads)

    async def record(
        self,
        actor: Actor,
        action: str,
        *,
        object_kind: str,
        object_id: str,
        tenant_id: UUID | None = None,
        before: dict[str, object] | None = None,
        after: dict[str, object] | None = None,
    ) -> None:
        """Tell of what this process did that no store notes; it stands already.

        Where the store is away, the process's own log tells of it.
        """
        try:
            organisation = await self._tenants.organisation()
            entry = AuditEntry(
                action,
                object_kind,
                object_id,
                organisation.id,
                tenant_id=tenant_id,
                before=before,
                after=after,
            )
            await self._log.append(actor, entry)
        except StoreUnavailable:
            logger.error("not in the audit log: %s by %s: %s", action, actor, after)


def _of_tenant(record: AuditRecord) -> AuditRecord:
    if record.actor.is_of_tenant:
        return record
    return replace(record, actor=replace(record.actor, ip=None))
