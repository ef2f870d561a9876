"""Tenants that store as much as they may, as a worker knows them."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID, uuid4

import pytest

from gateway.errors import StoreUnavailable
from gateway.services.batches.worker_storage import FullStorage

pytestmark = pytest.mark.anyio


class Stored:
    """Say who is full, or that the database is away."""

    def __init__(self) -> None:
        self.full: Collection[UUID] | None = ()

    async def full_tenants(self, max_stored_bytes: int) -> Collection[UUID]:
        assert max_stored_bytes == 9
        if self.full is None:
            raise StoreUnavailable
        return self.full


async def test_who_is_full_is_known_from_the_last_look() -> None:
    """Before the first nobody is; what is known holds while the database is away."""
    stored, tenant_id = Stored(), uuid4()
    storage = FullStorage(stored, max_stored_bytes=9)  # type: ignore[arg-type]  # no more of the store is asked
    assert not storage.has(tenant_id)
    stored.full = [tenant_id]
    await storage.look()
    stored.full = None
    with pytest.raises(StoreUnavailable):
        await storage.look()
    assert storage.has(tenant_id)
    stored.full = ()
    await storage.look()
    assert not storage.has(tenant_id)
