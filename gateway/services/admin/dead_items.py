"""Items of batches that killed their workers: shown to operators, and run again when they say so.

Nobody else ends such an item: left alone, it expires with its batch. How many there are is a metric
and, when there are more, a line of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final
from uuid import UUID

from gateway.background import JITTER, Background
from gateway.domain.admin import Actor
from gateway.domain.batch import DeadItem
from gateway.domain.page import Page, PageRequest
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import DeadItemStore
from gateway.services.admin.tenants import TenantService

logger = logging.getLogger(__name__)

COUNT_S: Final = 30.0
# In a transaction, with a record of the audit log that names each; and by name at once.
MAX_LINES: Final = 1000


class DeadItemService:
    """List and requeue for an admin; who may call this is decided above."""

    def __init__(self, items: DeadItemStore, tenants: TenantService) -> None:
        self._items = items
        self._tenants = tenants

    async def page(
        self, request: PageRequest, *, tenant: str | None = None, batch_id: UUID | None = None
    ) -> Page[DeadItem]:
        """Return what waits, by batch and line. Raises: `NotFound`; `InvalidRequest`: the cursor.

        `tenant` names whose.
        """
        organisation = await self._tenants.organisation()
        tenant_id = None if tenant is None else await self._tenants.id_of(tenant)
        return await self._items.page(
            organisation.id, request, tenant_id=tenant_id, batch_id=batch_id
        )

    async def requeue(
        self, actor: Actor, batch_id: UUID, lines: Collection[int] | None = None
    ) -> Sequence[int]:
        """Have what waits of a batch run again, or of it the ones of `lines`; return which did.

        A line that does not wait stays as it is. Raises: `NotFound`; `InvalidRequest`: too many.
        """
        if lines is not None and not 0 < len(lines) <= MAX_LINES:
            raise InvalidRequest(f"'lines' must be 1 to {MAX_LINES} lines.", param="lines")
        organisation = await self._tenants.organisation()
        requeued: list[int] = []
        while True:
            part = await self._items.requeue(
                actor, organisation.id, batch_id, lines, limit=MAX_LINES
            )
            if part is None:
                raise NotFound("There is no such batch.", param="batch")
            requeued += part
            if len(part) < MAX_LINES:
                return sorted(requeued)


class DeadItemWatch:
    """Count what waits; enter `running` to have it done. `on_counted` is told each time."""

    def __init__(self, items: DeadItemStore, on_counted: Callable[[int], None]) -> None:
        self._items = items
        self._on_counted = on_counted
        self._known = 0

    def running(self) -> Background:
        """Count while the block runs."""
        return Background(
            "counting items that killed their workers",
            self.count,
            interval_s=COUNT_S,
            jitter=JITTER,
            at_once=True,
            level=logging.DEBUG,
        )

    async def count(self) -> None:
        """Count, and say where there are more. Raises: `StoreUnavailable`."""
        number = await self._items.count()
        if number > self._known:
            logger.error(
                "%d items of batches killed their workers and wait for an operator: see "
                "'sluice batch dead list'",
                number,
            )
        self._known = number
        self._on_counted(number)
