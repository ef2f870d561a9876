"""Which running requests end with their key, over leases that only note it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from gateway.errors import GatewayError, StoreUnavailable
from gateway.services.inference import KeyWatch
from gateway.services.quotas import QuotaService

pytestmark = pytest.mark.anyio

TENANTS = UUID(int=1), UUID(int=2)


class NoDatabase:
    async def dead_keys(self, kids: Collection[str]) -> set[str]:
        raise StoreUnavailable


@dataclass
class Lease:
    """Hold whose a request is, and what ended it."""

    kid: str
    tenant_id: UUID
    ended: list[GatewayError] = field(default_factory=list)

    @property
    def terms(self) -> SimpleNamespace:
        return SimpleNamespace(principal=self)

    def fail(self, error: GatewayError) -> None:
        self.ended.append(error)


async def test_what_is_told_to_have_ended_ends_without_the_database() -> None:
    """What runs on that key, and on every key of that tenant, and nothing else."""
    leases = [Lease("a", TENANTS[0]), Lease("b", TENANTS[0]), Lease("c", TENANTS[1])]
    watch = KeyWatch(NoDatabase(), cast(QuotaService, SimpleNamespace(live=leases)))
    watch.end({"a", str(TENANTS[1])})
    with pytest.raises(StoreUnavailable):
        await watch.look()
    assert [lease.kid for lease in leases if lease.ended] == ["a", "c"]
    assert leases[0].ended[0].code == "invalid_api_key"
