"""How many uploads, or downloads, there are at a time: of a tenant, and in all.

Each holds a chunk in memory, an open file and now and then a thread, for as long as its client
takes. So that nobody's slow ones keep others out, a tenant has a part of the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from gateway.errors import Overloaded, TenantLimited

_RETRY_AFTER_S: Final = 2.0


class Places:
    """Count who is here; `what` they do is said to who finds no place. On the event loop alone."""

    def __init__(self, what: str, *, of_tenant: int, in_all: int) -> None:
        self._what = what
        self._of_tenant = of_tenant
        self._in_all = in_all
        self._taken: Counter[UUID] = Counter()

    @property
    def num_taken(self) -> int:
        """Return how many are here."""
        return self._taken.total()

    @contextmanager
    def held(self, tenant_id: UUID) -> Iterator[None]:
        """Hold a place while the block runs. Raises: `TenantLimited`, `Overloaded`: none left."""
        if self._taken[tenant_id] >= self._of_tenant:
            raise TenantLimited(
                f"This tenant has {self._of_tenant} {self._what} under way, as many as it may.",
                code=f"too_many_{self._what}",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self.num_taken >= self._in_all:
            raise Overloaded(
                f"Too many {self._what} are under way. Try again shortly.",
                code=f"too_many_{self._what}",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._taken[tenant_id] += 1
        try:
            yield
        finally:
            self._taken[tenant_id] -= 1
            if not self._taken[tenant_id]:
                del self._taken[tenant_id]
