"""Admin tokens in PostgreSQL: kept as MACs, listed, revoked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from gateway.domain.admin import AdminRole, AdminTokenDraft
from gateway.domain.page import PageRequest
from gateway.store import Store
from gateway.store.tables import audit_log
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio


async def test_a_token_is_kept_and_revoked(store: Store) -> None:
    """It is found with what proves it, listed after the first, and revoked once."""
    organisation = await store.organisations.default()
    tenant = await store.tenants.by_name(organisation.id, "acme")
    assert tenant is not None
    draft = AdminTokenDraft(
        kid="k" * 12,
        pepper_id="pepper",
        mac=b"\xab" * 32,
        name="ci",
        role=AdminRole.TENANT_VIEWER,
        tenant_id=tenant.id,
        expires_at=datetime.now(UTC) + timedelta(hours=1),
    )
    token = await store.admin_tokens.add(ACTOR, organisation.id, draft)
    assert (token.name, token.role, token.tenant) == ("ci", AdminRole.TENANT_VIEWER, "acme")
    record = await store.admin_tokens.find("k" * 12)
    assert record is not None
    assert (record.token, record.pepper_id, record.mac) == (token, "pepper", b"\xab" * 32)
    listed = (await store.admin_tokens.page(PageRequest())).data
    assert [one.name for one in listed] == ["first", "ci"]
    revoked = await store.admin_tokens.revoke(ACTOR, organisation.id, token.id)
    assert revoked is not None
    assert revoked.revoked_at is not None
    assert await store.admin_tokens.revoke(ACTOR, organisation.id, "k" * 12) == revoked
    assert await store.admin_tokens.revoke(ACTOR, organisation.id, "x" * 12) is None


async def test_tokens_are_told_of_without_their_macs(store: Store) -> None:
    """The audit log has who got which role, and nothing that proves a token."""
    organisation = await store.organisations.default()
    draft = AdminTokenDraft(
        kid="k" * 12, pepper_id="pepper", mac=b"\xab" * 32, name="ops", role=AdminRole.OPERATOR
    )
    await store.admin_tokens.add(ACTOR, organisation.id, draft)
    await store.admin_tokens.revoke(ACTOR, organisation.id, "k" * 12)
    query = select(audit_log.c.action, audit_log.c.after).order_by(audit_log.c.seq)
    async with store.database.platform() as connection:
        told = (await connection.execute(query)).all()[-2:]
    assert [row.action for row in told] == ["token.create", "token.revoke"]
    assert (told[1].after["role"], told[1].after["is_revoked"]) == ("operator", True)
    assert set(told[0].after) == {"kid", "name", "role", "tenant", "expires_at", "is_revoked"}
