"""Sign-ins that failed, told in the audit log: at most a record a minute, however many they are.

What a stranger typed as a name is not repeated: it may be a password. Users are named, and of the
addresses the one with the most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from gateway.background import Background
from gateway.domain.address import counted_as
from gateway.domain.admin import SYSTEM, AuditEntry
from gateway.ports import AuditStore

EVERY_S: Final = 60.0
# Fewer in a minute are people who mistyped.
LEAST: Final = 5
_MAX_NAMED: Final = 3
_MAX_KEPT: Final = 1000


class FailedLogins:
    """Count them, and `tell`, which `running` does each minute."""

    def __init__(self, audit: AuditStore, organisation_id: UUID) -> None:
        self._audit = audit
        self._organisation_id = organisation_id
        self._num = 0
        self._users: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()

    def note(self, user: str | None, address: str | None) -> None:
        """Count one; `user` where there is one of the name that was given."""
        self._num += 1
        for counter, key in ((self._users, user), (self._addresses, counted_as(address or ""))):
            if key and (key in counter or len(counter) < _MAX_KEPT):
                counter[key] += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tell each minute while the block runs, and at its end of what is left."""
        telling = Background("telling of failed sign-ins", self.tell, interval_s=EVERY_S)
        async with telling:
            yield
        await telling.round()

    async def tell(self) -> None:
        """Write one record of what came since the last, if that is many. Raises: the store's."""
        num, users, addresses = self._num, self._users, self._addresses
        self._num, self._users, self._addresses = 0, Counter(), Counter()
        if num < LEAST:
            return
        most = addresses.most_common(1)
        entry = AuditEntry(
            action="login.failures",
            object_kind="login",
            object_id="failures",
            organisation_id=self._organisation_id,
            after={
                "failures": num,
                "addresses": len(addresses),
                "most_from": most[0][0] if most else None,
                "users": dict(users.most_common(_MAX_NAMED)),
            },
        )
        await self._audit.append(SYSTEM, entry)
