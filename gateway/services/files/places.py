"""How many uploads, or downloads, there are at a time: of a tenant, and in all.

Each holds a chunk in memory, an open file and now and then a thread, for as long as its client
takes. So that nobody's slow ones keep others out, a tenant has a part of the places, and less where
many have theirs: see `gateway.domain.shared_room`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from gateway.domain.shared_room import SharedRoom
from gateway.errors import Overloaded, TenantLimited

_RETRY_AFTER_S: Final = 2.0


class Places:
    """Count who is here; `what` they do is said to who finds no place. On the event loop alone."""

    def __init__(
        self,
        what: str,
        *,
        of_tenant: int,
        in_all: int,
        owner_of: Callable[[UUID], UUID] | None = None,
    ) -> None:
        self._what = what
        self._room = SharedRoom(in_all, of_tenant=of_tenant, least=1, owner_of=owner_of)

    @property
    def num_taken(self) -> int:
        """Return how many are here."""
        return self._room.num_taken

    @contextmanager
    def held(self, tenant_id: UUID) -> Iterator[None]:
        """Hold a place while the block runs. Raises: `TenantLimited`, `Overloaded`: none left."""
        if self._room.is_above_its_own(tenant_id, 1):
            raise TenantLimited(
                f"This tenant has {self._room.taken_by(tenant_id)} {self._what} under way, as many "
                "as it may.",
                code=f"too_many_{self._what}",
                retry_after_s=_RETRY_AFTER_S,
            )
        if not self._room.left(tenant_id):
            raise Overloaded(
                f"Too many {self._what} are under way. Try again shortly.",
                code=f"too_many_{self._what}",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._room.take(tenant_id, 1)
        try:
            yield
        finally:
            self._room.give_back(tenant_id, 1)
