"""Keys in PostgreSQL: rotations, what is dead, pages that hold still."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from gateway.domain import ApiKey, KeyDraft, KeyRef, KeySecret, KeyStatus, Tier
from gateway.domain.page import PageRequest
from gateway.errors import Conflict, InvalidRequest, VersionConflict
from gateway.store import Store
from gateway.store.tables import audit_log, key_secrets, keys
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio


def secret(number: int) -> KeySecret:
    return KeySecret("pepper", bytes([number]) * 32)


async def add(store: Store, kid: str, **fields: object) -> tuple[KeyRef, ApiKey]:
    """Add a key of acme, and say how it is named."""
    organisation = await store.organisations.default()
    tenant = await store.tenants.by_name(organisation.id, "acme")
    assert tenant is not None
    draft = KeyDraft(kid=kid, name="k", secret=secret(0), **fields)  # type: ignore[arg-type]
    key = await store.keys.add(ACTOR, tenant, draft)
    return KeyRef(organisation.id, key.id), key


async def test_a_key_is_kept_as_it_was_made(store: Store) -> None:
    """Every scope comes back, in the key and in the principal that it authenticates."""
    fields = {
        "max_tier": Tier.PRIORITY,
        "models": ("a", "b/c"),
        "cidrs": ("10.0.0.0/8",),
        "allows_batch": False,
        "admin_read": True,
    }
    ref, key = await add(store, "k" * 12, **fields)
    assert await store.keys.get(ref) == key
    record = await store.keys.find(key.kid)
    assert record is not None
    for name, value in fields.items():
        assert (getattr(key, name), getattr(record.principal, name)) == (value, value)


async def test_a_rotation_leaves_the_old_secret_its_grace(store: Store) -> None:
    """Both secrets are there, the old one with its end, which the key shows."""
    ref, _ = await add(store, "k" * 12)
    ends_at = datetime.now(UTC) + timedelta(hours=1)
    rotated = await store.keys.rotate(ACTOR, ref, secret(1), old_ends_at=ends_at)
    assert rotated is not None
    assert (rotated.old_secret_expires_at, rotated.version) == (ends_at, 2)
    assert await _secrets(store, ref) == {0: ends_at, 1: None}


async def test_a_key_has_two_secrets_at_most(store: Store) -> None:
    """A third rotation ends the oldest at once; one without grace ends all but the new."""
    ref, _ = await add(store, "k" * 12)
    first, second = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))
    await store.keys.rotate(ACTOR, ref, secret(1), old_ends_at=first)
    await store.keys.rotate(ACTOR, ref, secret(2), old_ends_at=second)
    assert await _secrets(store, ref) == {1: second, 2: None}
    rotated = await store.keys.rotate(ACTOR, ref, secret(3), old_ends_at=None)
    assert rotated is not None
    assert rotated.old_secret_expires_at is None
    assert await _secrets(store, ref) == {3: None}


async def test_rotations_at_once_leave_two_secrets(store: Store) -> None:
    """However many rotate a key together, one secret lives on and one has an end."""
    ref, _ = await add(store, "k" * 12)
    ends_at = datetime.now(UTC) + timedelta(hours=1)
    await asyncio.gather(
        *(store.keys.rotate(ACTOR, ref, secret(n), old_ends_at=ends_at) for n in range(1, 6))
    )
    assert sorted((await _secrets(store, ref)).values(), key=str) == [ends_at, None]


async def test_a_dead_key_is_not_rotated(store: Store) -> None:
    """A revoked or expired key gets no new secret."""
    revoked, _ = await add(store, "r" * 12)
    await store.keys.revoke(ACTOR, revoked)
    expired, _ = await add(store, "e" * 12, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    for ref in (revoked, expired):
        with pytest.raises(Conflict):
            await store.keys.rotate(ACTOR, ref, secret(1), old_ends_at=None)
        assert await _secrets(store, ref) == {0: None}


async def test_the_dead_are_told_from_the_living(store: Store) -> None:
    """Revoked, expired and unknown keys are dead; the others, with or without an end, are not."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    await add(store, "a" * 12)
    await add(store, "b" * 12, expires_at=soon)
    await add(store, "c" * 12, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    revoked, _ = await add(store, "d" * 12)
    await store.keys.revoke(ACTOR, revoked)
    asked = [letter * 12 for letter in "abcdx"]
    assert await store.keys.dead(asked) == {"c" * 12, "d" * 12, "x" * 12}


async def test_a_key_is_named_within_a_tenant(store: Store) -> None:
    """Who names the tenant finds its keys by id and kid, and none of another's."""
    ref, key = await add(store, "k" * 12)
    for named in (key.id, key.kid):
        ours = KeyRef(ref.organisation_id, named, key.tenant_id)
        theirs = KeyRef(ref.organisation_id, named, uuid4())
        assert await store.keys.get(ours) == key
        for call in (
            store.keys.get(theirs),
            store.keys.update(ACTOR, theirs, {"name": "x"}),
            store.keys.rotate(ACTOR, theirs, secret(1), old_ends_at=None),
            store.keys.revoke(ACTOR, theirs),
        ):
            assert await call is None
    assert await store.keys.get(ref) == key
    other = KeyRef(UUID(int=5), key.id)
    assert await store.keys.get(other) is None


async def test_a_change_is_made_to_its_version(store: Store) -> None:
    """A change makes the next version; one for an older version is refused with the key."""
    ref, key = await add(store, "k" * 12)
    changes = {"name": "n", "models": ("m",), "max_tier": Tier.FLEX}
    changed = await store.keys.update(ACTOR, ref, changes, version=1)
    assert changed is not None
    assert (changed.name, changed.models, changed.max_tier) == ("n", ("m",), Tier.FLEX)
    assert changed.version == 2
    assert await store.keys.update(ACTOR, ref, changes) == changed
    with pytest.raises(VersionConflict) as refused:
        await store.keys.update(ACTOR, ref, {"name": "o"}, version=key.version)
    assert refused.value.current == changed


async def test_no_secret_is_in_the_audit_log(store: Store) -> None:
    """The log tells of keys without their MACs."""
    ref, _ = await add(store, "k" * 12)
    await store.keys.rotate(ACTOR, ref, KeySecret("pepper", b"\xab" * 32), old_ends_at=None)
    revoked = await store.keys.revoke(ACTOR, ref)
    assert revoked is not None
    assert revoked.status is KeyStatus.REVOKED
    query = select(audit_log.c.action, audit_log.c.after).order_by(audit_log.c.seq)
    async with store.database.platform() as connection:
        told = (await connection.execute(query)).all()[-3:]
    assert [row.action for row in told] == ["key.create", "key.rotate", "key.revoke"]
    assert {name for row in told for name in row.after} == {
        *("tenant", "kid", "name", "status", "expires_at", "old_secret_expires_at"),
        *("max_tier", "models", "cidrs", "allows_batch", "admin_read"),
        "operator_set",
    }


async def test_pages_hold_still_while_keys_come(store: Store) -> None:
    """Every key that was there is seen once, in the order of its making, whatever is inserted."""
    for number in range(5):
        await add(store, f"{number}" * 12)
    organisation = await store.organisations.default()
    # Keys of one moment: the order must not hang on their time alone.
    async with store.database.platform() as connection:
        await connection.execute(update(keys).values(created_at=datetime.now(UTC)))
    everyone = (await store.keys.page(organisation.id, None, PageRequest(1000))).data
    seen: list[ApiKey] = []
    request = PageRequest(2)
    while True:
        page = await store.keys.page(organisation.id, None, request)
        seen += page.data
        if page.next is None:
            break
        request = PageRequest(2, page.next)
        await add(store, f"new-{len(seen)}")
    assert [key.id for key in seen[: len(everyone)]] == [key.id for key in everyone]
    assert len({key.id for key in seen}) == len(seen)


@pytest.mark.parametrize(
    "after",
    [
        (),
        ("2026-01-01T00:00:00+00:00",),
        ("now", str(uuid4())),
        ("2026-01-01T00:00:00", str(uuid4())),
        ("2026-01-01T00:00:00+00:00", "x"),
    ],
)
async def test_a_cursor_of_another_making_is_refused(store: Store, after: tuple[str, ...]) -> None:
    """What the list did not give is no place in it."""
    organisation = await store.organisations.default()
    with pytest.raises(InvalidRequest) as refused:
        await store.keys.page(organisation.id, None, PageRequest(10, after))
    assert refused.value.param == "after"


async def _secrets(store: Store, ref: KeyRef) -> dict[int, datetime | None]:
    """Return when each secret ends, by the number that it was made of."""
    query = select(key_secrets.c.mac, key_secrets.c.expires_at)
    async with store.database.platform() as connection:
        rows = await connection.execute(query.where(key_secrets.c.key_id == ref.named))
        return {row.mac[0]: row.expires_at for row in rows}
