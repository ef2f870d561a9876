"""A key that is named: good exactly as long as its secret would be."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from gateway.domain import KeyRecord, Principal
from gateway.errors import AuthenticationFailed
from gateway.services.auth.chosen_keys import ChosenKeys
from tests.gateway.services.auth.test_authenticator import START_S, FakeClock

pytestmark = pytest.mark.anyio


class Keys:
    """Know one key."""

    def __init__(self, record: KeyRecord) -> None:
        self.record = record

    async def find(self, kid: str) -> KeyRecord | None:
        return self.record if kid == self.record.principal.kid else None


async def test_a_named_key_speaks_while_it_lives() -> None:
    """A live key's principal is its record's; one that is unknown, revoked or over is refused."""
    principal = Principal(
        tenant_id=uuid4(),
        tenant="acme",
        weight=1.0,
        key_id=uuid4(),
        kid="k1",
        organisation_id=uuid4(),
    )
    keys, clock = Keys(KeyRecord(principal, ())), FakeClock()
    chosen = ChosenKeys(keys, clock=clock)
    assert await chosen.authenticate("k1") is principal
    with pytest.raises(AuthenticationFailed):
        await chosen.authenticate("k2")
    keys.record = replace(keys.record, expires_at=datetime.fromtimestamp(START_S + 1, UTC))
    assert await chosen.authenticate("k1") is principal
    clock.now_s = START_S + 1
    with pytest.raises(AuthenticationFailed):
        await chosen.authenticate("k1")
    keys.record = KeyRecord(principal, (), revoked_at=datetime.fromtimestamp(START_S, UTC))
    with pytest.raises(AuthenticationFailed):
        await chosen.authenticate("k1")
