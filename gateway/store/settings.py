"""All kinds of settings read and written together, in one transaction.

Locks are taken in one order: plans, tenants, keys, limits, prices. Whoever changes one thing holds
that alone while it waits for the head of the audit log, and this takes the head last: so nobody
waits in a circle. Statements are of `_ROWS` rows, so that the event loop turns between them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError

from gateway.domain import Organisation
from gateway.domain.admin import Actor
from gateway.domain.desired import Desired, Present, Write
from gateway.domain.quota import ScopeQuota
from gateway.errors import Conflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.settings_present import PresentReader
from gateway.store.settings_writes import SettingsWriter, in_force
from gateway.turns import let_go

# One beside that of the prices: one transaction of this kind at a time.
_LOCK: Final = 7_308_325_614_571_844_469
_LOCK_TIMEOUT: Final = text("SET LOCAL lock_timeout = '5s'")


class SqlSettings:
    """Implement `SettingsStore`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def look(self, organisation: Organisation, desired: Desired) -> Present:
        async with self._database.platform() as connection:
            return await PresentReader(connection, organisation, desired, is_locking=False).read()

    async def apply(
        self,
        actor: Actor,
        organisation: Organisation,
        desired: Desired,
        decide: Callable[[Present], Awaitable[Sequence[Write]]],
        agreed: Callable[[], Awaitable[None]],
    ) -> Sequence[ScopeQuota]:
        try:
            async with self._database.platform() as connection:
                await connection.execute(_LOCK_TIMEOUT)
                await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
                reader = PresentReader(connection, organisation, desired, is_locking=True)
                present = await reader.read()
                writes = await decide(present)
                writer = SettingsWriter(connection, organisation.id)
                await writer.write(writes)
                await self._audit.append_all(connection, actor, writer.entries)
                await let_go(writer.entries)
                changed = await in_force(connection, writes)
                await agreed()
                return changed
        except IntegrityError as exc:
            raise Conflict(
                "Something of the same name was made meanwhile. Look at the plan again."
            ) from exc
