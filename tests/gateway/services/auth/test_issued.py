"""Which tokens are asked for: those that we issued, before there were tags too, and no other."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import pytest

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, Secrets, new_token
from gateway.domain import KeyDraft, KeySecret
from gateway.domain.admin import AdminRole, AdminTokenDraft
from gateway.errors import StoreUnavailable
from gateway.services.auth.issued import IssuedTokens
from gateway.store import Store
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio

SECRETS = Secrets(bytes(range(32)))
START = datetime(2027, 1, 1, tzinfo=UTC)


class FakeUntagged:
    """Keep MACs by when they were made; `asked` is since when each question was."""

    def __init__(self) -> None:
        self.made: list[tuple[bytes, datetime]] = []
        self.asked: list[datetime | None] = []
        self.now = START
        self.away = False

    async def made_since(self, at: datetime | None) -> tuple[Collection[bytes], datetime]:
        if self.away:
            raise StoreUnavailable
        self.asked.append(at)
        return [mac for mac, made in self.made if at is None or made >= at], self.now


def knows(issued: IssuedTokens, prefix: str = KEY_PREFIX, *, tagged: bool = False) -> bool:
    token = SECRETS.issue(prefix) if tagged else new_token(prefix)
    return issued.may_hold(token, SECRETS.key_mac(token))


async def test_what_was_never_read_refuses_nobody() -> None:
    """Until the store has answered once, any well-formed token may be one without a tag."""
    store = FakeUntagged()
    issued = IssuedTokens(store, SECRETS)
    store.away = True
    with pytest.raises(StoreUnavailable):
        await issued.refresh()
    assert knows(issued)
    store.away = False
    await issued.refresh()
    assert not knows(issued)
    assert knows(issued, tagged=True)
    assert knows(issued, ADMIN_PREFIX, tagged=True)


async def test_tokens_without_a_tag_are_known_by_their_macs() -> None:
    """The very token is, not another of its name; and what comes later adds to it."""
    store = FakeUntagged()
    token = new_token(KEY_PREFIX)
    store.made.append((SECRETS.key_mac(token)[:8], START - timedelta(days=300)))
    issued = IssuedTokens(store, SECRETS)
    await issued.refresh()
    assert issued.may_hold(token, SECRETS.key_mac(token))
    other = SECRETS.key_mac(new_token(KEY_PREFIX))
    assert not issued.may_hold(token, other)
    later = new_token(ADMIN_PREFIX)
    store.made.append((SECRETS.admin_mac(later)[:8], START))
    store.now += timedelta(seconds=5)
    await issued.refresh()
    assert issued.may_hold(later, SECRETS.admin_mac(later))
    assert issued.may_hold(token, SECRETS.key_mac(token))


async def test_what_is_new_is_asked_for_and_a_minute_before_it() -> None:
    """A row is dated when its transaction began, so what was just read is read again."""
    store = FakeUntagged()
    issued = IssuedTokens(store, SECRETS)
    await issued.refresh()
    store.now += timedelta(seconds=5)
    await issued.refresh()
    assert store.asked == [None, START - timedelta(minutes=1)]


async def test_a_store_that_is_away_forgets_nothing() -> None:
    """What is known stays known, strangers stay strangers, and the next round makes up for it."""
    store = FakeUntagged()
    token = new_token(KEY_PREFIX)
    store.made.append((SECRETS.key_mac(token)[:8], START))
    issued = IssuedTokens(store, SECRETS)
    async with issued.running():
        store.away = True
        with pytest.raises(StoreUnavailable):
            await issued.refresh()
        assert issued.may_hold(token, SECRETS.key_mac(token))
        assert not knows(issued)


async def test_the_store_lists_what_has_no_tag(store: Store) -> None:
    """Keys and admin tokens of whoever knows no tags, and none of those that we issue."""
    issued = IssuedTokens(store.untagged, store.secrets)
    await issued.refresh()
    assert not knows(issued)
    organisation = await store.organisations.default()
    tenant = await store.tenants.by_name(organisation.id, "acme")
    assert tenant is not None
    key, admin = new_token(KEY_PREFIX), new_token(ADMIN_PREFIX)
    mac = store.secrets.key_mac(key)
    draft = KeyDraft(kid=key.kid, name="k", secret=KeySecret(store.secrets.pepper_id, mac))
    await store.keys.add(ACTOR, tenant, draft)
    admin_draft = AdminTokenDraft(
        kid=admin.kid,
        pepper_id=store.secrets.pepper_id,
        mac=store.secrets.admin_mac(admin),
        name="a",
        role=AdminRole.VIEWER,
    )
    await store.admin_tokens.add(ACTOR, organisation.id, admin_draft)
    macs, now = await store.untagged.made_since(None)
    assert set(macs) == {mac[:8], admin_draft.mac[:8]}
    assert abs((now - datetime.now(UTC)).total_seconds()) < 60
    await issued.refresh()
    assert issued.may_hold(key, mac)
    assert issued.may_hold(admin, admin_draft.mac)
    later, _ = await store.untagged.made_since(now)
    assert later == []
