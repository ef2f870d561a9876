"""Authentication against a fake store and a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, Secrets, Token, new_token
from gateway.domain import (
    ApiKey,
    KeyDraft,
    KeyRecord,
    KeyRef,
    KeySecret,
    Principal,
    Tenant,
)
from gateway.domain.admin import Actor
from gateway.domain.page import Page, PageRequest
from gateway.domain.quota import PLATFORM, Quota, ScopeQuota
from gateway.errors import AuthenticationFailed, StoreUnavailable
from gateway.services.auth.authenticator import Authenticator
from gateway.services.auth.upkeep import AuthUpkeep, tell_ended

pytestmark = pytest.mark.anyio

SECRETS = Secrets(bytes(range(32)))
START_S = 1_800_000_000.0


class FakeClock:
    """Stand still until told."""

    def __init__(self) -> None:
        self.now_s = START_S

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


class FakeKeys:
    """Keep key records in a dict, count the queries, and answer when `gate` is open."""

    def __init__(self) -> None:
        self.records: dict[str, KeyRecord] = {}
        self.queries = 0
        self.touched: list[Mapping[UUID, datetime]] = []
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def add(self, actor: Actor, tenant: Tenant, draft: KeyDraft) -> ApiKey:
        raise NotImplementedError

    async def page(
        self,
        organisation_id: UUID,
        tenant_id: UUID | None,
        request: PageRequest,
        *,
        is_live: bool = False,
    ) -> Page[ApiKey]:
        raise NotImplementedError

    async def get(self, ref: KeyRef) -> ApiKey | None:
        raise NotImplementedError

    async def update(
        self,
        actor: Actor,
        ref: KeyRef,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> ApiKey | None:
        raise NotImplementedError

    async def revoke(self, actor: Actor, ref: KeyRef) -> ApiKey | None:
        raise NotImplementedError

    async def rotate(
        self, actor: Actor, ref: KeyRef, secret: KeySecret, *, old_ends_at: datetime | None
    ) -> ApiKey | None:
        raise NotImplementedError

    async def dead(self, kids: Collection[str]) -> set[str]:
        live = (record for record in self.records.values() if record.revoked_at is None)
        return set(kids) - {record.principal.kid for record in live}

    async def find(self, kid: str) -> KeyRecord | None:
        self.queries += 1
        record = self.records.get(kid)
        await self.gate.wait()
        if self.away:
            raise StoreUnavailable
        return record

    async def touch(self, used: Mapping[UUID, datetime]) -> None:
        if self.away:
            raise StoreUnavailable
        self.touched.append(dict(used))


class FakeEpoch:
    """Hold the epoch in memory; None is a Redis that is away."""

    def __init__(self) -> None:
        self.value: int | None = 0
        self.names: dict[int, str | None] = {}

    async def current(self) -> int | None:
        return self.value

    async def advance(self, changed: str | None = None) -> None:
        self.value = (self.value or 0) + 1
        self.names[self.value] = changed

    async def changed(self, after: int, to: int) -> set[str] | None:
        named = {self.names.get(epoch) for epoch in range(after + 1, to + 1)}
        return {one for one in named if one is not None} if None not in named else None


class Rig:
    """Hold an authenticator with what it stands on."""

    def __init__(self) -> None:
        self.keys = FakeKeys()
        self.clock = FakeClock()
        self.auth = Authenticator(self.keys, SECRETS, self.clock)

    def issue(self, *, expires_at_s: float | None = None) -> Token:
        token = new_token(KEY_PREFIX)
        self.keys.records[token.kid] = KeyRecord(
            principal=Principal(
                organisation_id=uuid4(),
                tenant_id=uuid4(),
                tenant="acme",
                weight=1.0,
                key_id=uuid4(),
                kid=token.kid,
            ),
            secrets=(KeySecret(SECRETS.pepper_id, SECRETS.key_mac(token)),),
            expires_at=None if expires_at_s is None else _at(expires_at_s),
        )
        return token

    def revoke(self, token: Token) -> None:
        record = self.keys.records[token.kid]
        self.keys.records[token.kid] = replace(record, revoked_at=_at(self.clock.now_s))

    async def refuses(self, text: str) -> bool:
        try:
            await self.auth.authenticate(text)
        except AuthenticationFailed:
            return True
        return False


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


async def test_a_live_key_gives_its_principal(rig: Rig) -> None:
    """The principal is the record's, at the first request and from the cache."""
    token = rig.issue()
    expected = rig.keys.records[token.kid].principal
    assert await rig.auth.authenticate(token.text) == expected
    assert await rig.auth.authenticate(token.text) == expected
    assert rig.keys.queries == 1


async def test_every_cause_has_the_same_answer(rig: Rig) -> None:
    """Malformed, unknown, wrong secret, revoked, expired, other pepper: one text, one code."""
    revoked, expired, wrong, other = (rig.issue() for _ in range(4))
    rig.revoke(revoked)
    rig.keys.records[expired.kid] = replace(
        rig.keys.records[expired.kid], expires_at=_at(START_S - 1)
    )
    rig.keys.records[wrong.kid] = replace(
        rig.keys.records[wrong.kid], secrets=(KeySecret(SECRETS.pepper_id, bytes(32)),)
    )
    rig.keys.records[other.kid] = replace(
        rig.keys.records[other.kid], secrets=(KeySecret("other", SECRETS.key_mac(other)),)
    )
    causes = [
        *("", "x", "sluice_live_", "sluice_live_é", "\ud800", "a" * 100_000),
        new_token(KEY_PREFIX).text,
        new_token(ADMIN_PREFIX).text,
        *(token.text for token in (revoked, expired, wrong, other)),
    ]
    answers = set()
    for text in causes:
        with pytest.raises(AuthenticationFailed) as refused:
            await rig.auth.authenticate(text)
        answers.add((refused.value.message, refused.value.code, refused.value.param))
    assert len(answers) == 1


async def test_a_wrong_checksum_reaches_no_store(rig: Rig) -> None:
    """A typing error is refused without a query."""
    text = rig.issue().text
    assert await rig.refuses(text[:-1] + ("a" if text[-1] != "a" else "b"))
    assert rig.keys.queries == 0


async def test_200_first_requests_make_one_query(rig: Rig) -> None:
    """Requests of one key that miss together wait for one answer."""
    token = rig.issue()
    rig.keys.gate.clear()
    requests = [asyncio.create_task(rig.auth.authenticate(token.text)) for _ in range(200)]
    await asyncio.sleep(0)
    requests[0].cancel()
    rig.keys.gate.set()
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [rig.keys.records[token.kid].principal] * 199
    assert rig.keys.queries == 1


async def test_a_store_that_is_away_is_no_refusal(rig: Rig) -> None:
    """An uncached key meets `StoreUnavailable`, a cached one goes on, and nothing is remembered."""
    cached, uncached = rig.issue(), rig.issue()
    await rig.auth.authenticate(cached.text)
    rig.keys.away = True
    await rig.auth.authenticate(cached.text)
    with pytest.raises(StoreUnavailable):
        await rig.auth.authenticate(uncached.text)
    rig.keys.away = False
    await rig.auth.authenticate(uncached.text)


async def test_a_known_key_outlives_the_stores_silence(rig: Rig) -> None:
    """It stays good for the grace time past its life in the cache, and not a second longer."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    assert not rig.auth.degraded
    rig.keys.away = True
    rig.clock.now_s += 11
    await rig.auth.authenticate(token.text)
    assert rig.auth.degraded
    rig.clock.now_s += 297
    await rig.auth.authenticate(token.text)
    rig.clock.now_s += 2
    with pytest.raises(StoreUnavailable):
        await rig.auth.authenticate(token.text)


async def test_the_grace_ends_when_the_store_answers(rig: Rig) -> None:
    """A key that was revoked meanwhile is refused, one that was not is confirmed."""
    revoked, kept = rig.issue(), rig.issue()
    for token in (revoked, kept):
        await rig.auth.authenticate(token.text)
    rig.keys.away = True
    rig.clock.now_s += 60
    for token in (revoked, kept):
        await rig.auth.authenticate(token.text)
    rig.keys.away = False
    rig.revoke(revoked)
    rig.clock.now_s += 1
    assert await rig.refuses(revoked.text)
    await rig.auth.authenticate(kept.text)
    assert not rig.auth.degraded
    rig.keys.away = True
    rig.clock.now_s += 20
    with pytest.raises(StoreUnavailable):
        await rig.auth.authenticate(revoked.text)
    await rig.auth.authenticate(kept.text)


async def test_a_revoked_key_has_no_grace(rig: Rig) -> None:
    """What was forgotten here, or changed anywhere, is not taken for good while nobody knows."""
    token, other = rig.issue(), rig.issue()
    for one in (token, other):
        await rig.auth.authenticate(one.text)
    rig.keys.away = True
    rig.auth.forget(token.kid)
    with pytest.raises(StoreUnavailable):
        await rig.auth.authenticate(token.text)
    rig.clock.now_s += 11
    await rig.auth.authenticate(other.text)
    rig.auth.forget_all()
    with pytest.raises(StoreUnavailable):
        await rig.auth.authenticate(other.text)


async def test_a_key_that_expires_has_no_grace(rig: Rig) -> None:
    """Its end is known without the store."""
    token = rig.issue(expires_at_s=START_S + 20)
    await rig.auth.authenticate(token.text)
    rig.keys.away = True
    rig.clock.now_s += 20
    assert await rig.refuses(token.text)


async def test_a_store_that_hangs_holds_up_nobody_for_long(rig: Rig) -> None:
    """Whoever asks waits a little, and goes on with what is known."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.keys.gate.clear()
    rig.clock.now_s += 11
    await rig.auth.authenticate(token.text)
    assert rig.auth.degraded
    rig.keys.gate.set()


async def test_a_store_that_still_hangs_holds_up_one_request(rig: Rig) -> None:
    """While it is known not to answer one asks, and those beside it go on at once."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.keys.gate.clear()
    rig.clock.now_s += 11
    await rig.auth.authenticate(token.text)
    rig.clock.now_s += 1
    asks = asyncio.create_task(rig.auth.authenticate(token.text))
    await asyncio.sleep(0)
    for _ in range(20):
        await rig.auth.authenticate(token.text)
        assert not asks.done()
    await asks
    rig.keys.gate.set()


async def test_a_store_that_is_away_is_asked_once_a_second(rig: Rig) -> None:
    """Requests between go on with what is known, and none of them waits."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.keys.away = True
    rig.clock.now_s += 11
    for second in range(3):
        for _ in range(20):
            await rig.auth.authenticate(token.text)
        assert rig.keys.queries == 2 + second
        rig.clock.now_s += 1


async def test_a_key_revoked_while_the_store_hangs_is_not_taken_for_good(rig: Rig) -> None:
    """A request that waits for a confirmation does not outlive a revocation in this process."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.keys.gate.clear()
    rig.clock.now_s += 11
    waiting = asyncio.create_task(rig.auth.authenticate(token.text))
    await asyncio.sleep(0)
    rig.auth.forget(token.kid)
    with pytest.raises(StoreUnavailable):
        await waiting
    rig.keys.gate.set()


async def test_limits_that_change_by_themselves_are_read_again(rig: Rig) -> None:
    """At the end of an override the store is asked, whatever the cache's life."""
    token = rig.issue()
    record = rig.keys.records[token.kid]
    over = ScopeQuota(PLATFORM, Quota(rpm=5))
    rig.keys.records[token.kid] = replace(
        record,
        principal=replace(record.principal, quotas=(over,)),
        changes_at=_at(START_S + 3),
    )
    assert (await rig.auth.authenticate(token.text)).quotas == (over,)
    rig.keys.records[token.kid] = record
    rig.clock.now_s += 2.9
    assert (await rig.auth.authenticate(token.text)).quotas == (over,)
    rig.clock.now_s += 0.1
    assert (await rig.auth.authenticate(token.text)).quotas == ()


async def test_an_old_secret_says_when_it_ends(rig: Rig) -> None:
    """The principal of the secret that a rotation left has its end, that of the new one none."""
    old, new = rig.issue(), new_token(KEY_PREFIX)
    record = rig.keys.records[old.kid]
    secrets = (
        replace(record.secrets[0], expires_at=_at(START_S + 60)),
        KeySecret(SECRETS.pepper_id, SECRETS.key_mac(new)),
    )
    rig.keys.records[old.kid] = rig.keys.records[new.kid] = replace(record, secrets=secrets)
    assert (await rig.auth.authenticate(old.text)).secret_ends_at == START_S + 60
    assert (await rig.auth.authenticate(new.text)).secret_ends_at is None


async def test_running_requests_learn_of_dead_keys(rig: Rig) -> None:
    """Of the keys that run, those that are dead; nothing is asked where none runs."""
    live, dead = rig.issue(), rig.issue()
    rig.revoke(dead)
    assert await rig.auth.dead_keys([live.kid, dead.kid]) == {dead.kid}
    assert await rig.auth.dead_keys([]) == set()


async def test_a_refused_token_is_remembered_for_five_seconds(rig: Rig) -> None:
    """Repeating an unknown token makes no more queries until then."""
    text = new_token(KEY_PREFIX).text
    for _ in range(3):
        assert await rig.refuses(text)
    assert rig.keys.queries == 1
    rig.clock.now_s += 5
    assert await rig.refuses(text)
    assert rig.keys.queries == 2


async def test_a_live_key_is_looked_up_again_within_ten_seconds(rig: Rig) -> None:
    """A revocation that nobody announced takes effect at the end of the cache's life."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.revoke(token)
    rig.clock.now_s += 7.6
    await rig.auth.authenticate(token.text)
    rig.clock.now_s += 1.8
    assert await rig.refuses(token.text)


async def test_a_key_in_use_is_never_waited_for(rig: Rig) -> None:
    """It is asked for before its life in the cache is over: one query, however many use it."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.clock.now_s += 5
    await rig.auth.authenticate(token.text)
    await asyncio.sleep(0)
    assert rig.keys.queries == 1
    rig.keys.gate.clear()
    rig.clock.now_s += 2
    async with asyncio.timeout(1):
        for _ in range(20):
            await rig.auth.authenticate(token.text)
            await asyncio.sleep(0)
    assert rig.keys.queries == 2
    rig.keys.gate.set()
    await asyncio.sleep(0.01)
    # As long again from the answer on.
    rig.clock.now_s += 5
    await rig.auth.authenticate(token.text)
    assert rig.keys.queries == 2


async def test_a_revocation_is_found_ahead_of_time(rig: Rig) -> None:
    """What is asked for early counts early."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.revoke(token)
    rig.clock.now_s += 7
    await rig.auth.authenticate(token.text)
    await asyncio.sleep(0.01)
    assert await rig.refuses(token.text)


async def test_a_store_that_is_away_is_asked_ahead_once_a_second(rig: Rig) -> None:
    """Nobody waits, nobody is refused, and no fault is left that nobody has looked at."""
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.keys.away = True
    rig.clock.now_s += 6.6
    for second in range(2):
        for _ in range(20):
            await rig.auth.authenticate(token.text)
            await asyncio.sleep(0.001)
        assert rig.keys.queries == 2 + second
        rig.clock.now_s += 1
    assert rig.auth.degraded


async def test_a_key_that_was_found_dead_is_dead_for_new_requests_too(rig: Rig) -> None:
    """Whoever looks at the keys of what runs has them forgotten, and those alone."""
    dead, live = rig.issue(), rig.issue()
    for token in (dead, live):
        await rig.auth.authenticate(token.text)
    rig.revoke(dead)
    await rig.auth.dead_keys([dead.kid, live.kid])
    assert await rig.refuses(dead.text)
    await rig.auth.authenticate(live.text)
    assert rig.keys.queries == 3


async def test_a_forgotten_key_is_looked_up_at_once(rig: Rig) -> None:
    """A revocation in this process needs no time; other keys stay cached."""
    token, other = rig.issue(), rig.issue()
    await rig.auth.authenticate(token.text)
    await rig.auth.authenticate(other.text)
    rig.revoke(token)
    rig.auth.forget(token.kid)
    assert await rig.refuses(token.text)
    await rig.auth.authenticate(other.text)
    assert rig.keys.queries == 3


async def test_a_query_older_than_a_revocation_is_not_cached(rig: Rig) -> None:
    """What was read before the revocation and arrives after it is used by nobody else."""
    token = rig.issue()
    rig.keys.gate.clear()
    early = asyncio.create_task(rig.auth.authenticate(token.text))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rig.revoke(token)
    rig.auth.forget(token.kid)
    rig.keys.gate.set()
    await early
    assert await rig.refuses(token.text)


async def test_expiry_ends_a_cached_key(rig: Rig) -> None:
    """A key that expires while it is cached is refused from that second on."""
    token = rig.issue(expires_at_s=START_S + 3)
    rig.clock.now_s += 2.9
    await rig.auth.authenticate(token.text)
    rig.clock.now_s += 0.1
    assert await rig.refuses(token.text)
    assert rig.keys.queries == 1


async def test_of_two_secrets_each_lives_to_its_own_end(rig: Rig) -> None:
    """Two live secrets of one key both work, and each ends by itself."""
    old = rig.issue()
    record = rig.keys.records[old.kid]
    ends = replace(record.secrets[0], expires_at=_at(START_S + 5))
    new = KeySecret(SECRETS.pepper_id, SECRETS.key_mac(new_token(KEY_PREFIX)))
    rig.keys.records[old.kid] = replace(record, secrets=(ends, new))
    await rig.auth.authenticate(old.text)
    rig.clock.now_s += 5
    assert await rig.refuses(old.text)


async def test_a_revocation_elsewhere_empties_the_cache(rig: Rig) -> None:
    """When the epoch moves the next request asks the store, and others that keep things are told.

    A Redis that is away empties nothing.
    """
    epoch = FakeEpoch()
    refreshed: list[int | None] = []

    async def refresh() -> None:
        refreshed.append(epoch.value)

    upkeep = AuthUpkeep(rig.auth, rig.keys, epoch, rig.clock, on_change=[refresh])
    await upkeep.follow_epoch()
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    epoch.value = None
    await upkeep.follow_epoch()
    await rig.auth.authenticate(token.text)
    assert rig.keys.queries == 1
    rig.revoke(token)
    epoch.value = 1
    await upkeep.follow_epoch()
    assert await rig.refuses(token.text)
    assert refreshed == [1]


async def test_what_one_tenant_changes_elsewhere_leaves_others_served(rig: Rig) -> None:
    """While the database is away, a change of one tenant's key takes nobody else's; one that
    nobody can name takes all.
    """
    epoch = FakeEpoch()
    upkeep = AuthUpkeep(rig.auth, rig.keys, epoch, rig.clock)
    await upkeep.follow_epoch()
    revoked, moved, kept = rig.issue(), rig.issue(), rig.issue()
    for token in (revoked, moved, kept):
        await rig.auth.authenticate(token.text)
    rig.keys.away = True
    await epoch.advance(revoked.kid)
    await epoch.advance(str(rig.keys.records[moved.kid].principal.tenant_id))
    await upkeep.follow_epoch()
    for token in (revoked, moved):
        with pytest.raises(StoreUnavailable):
            await rig.auth.authenticate(token.text)
    await rig.auth.authenticate(kept.text)
    await epoch.advance()
    await upkeep.follow_epoch()
    with pytest.raises(StoreUnavailable):
        await rig.auth.authenticate(kept.text)


async def test_what_ended_elsewhere_is_told_without_the_database(rig: Rig) -> None:
    """A change is no end; what has ended is forgotten by who knows nothing of ends too."""
    told: list[Collection[str]] = []
    epoch = FakeEpoch()
    upkeep = AuthUpkeep(rig.auth, rig.keys, epoch, rig.clock, on_ended=told.append)
    await upkeep.follow_epoch()
    rig.keys.away = True
    await epoch.advance("changed")
    await tell_ended(epoch, "revoked")
    await upkeep.follow_epoch()
    assert told == [{"revoked"}]
    assert await epoch.changed(1, 2) == {"revoked"}


async def test_a_lost_epoch_drops_nothing_that_nobody_can_read_again(rig: Rig) -> None:
    """An epoch that went back is a Redis that was emptied: keys are asked for before they are used.

    Where the database is away too they stand; where it answers, a revoked one is refused.
    """
    told: list[str] = []

    async def tell() -> None:
        told.append("changed")

    epoch = FakeEpoch()
    epoch.value = 7
    upkeep = AuthUpkeep(rig.auth, rig.keys, epoch, rig.clock, on_change=[tell])
    await upkeep.follow_epoch()
    kept, revoked = rig.issue(), rig.issue()
    for token in (kept, revoked):
        await rig.auth.authenticate(token.text)
    epoch.value = 0
    await upkeep.follow_epoch()
    assert told == ["changed"]
    rig.keys.away = True
    for token in (kept, revoked):
        await rig.auth.authenticate(token.text)
    rig.keys.away = False
    rig.revoke(revoked)
    rig.clock.now_s += 1
    assert await rig.refuses(revoked.text)
    await rig.auth.authenticate(kept.text)
    # Two at first, one that failed for both, one each that was answered.
    assert rig.keys.queries == 5
    epoch.value = 1
    await upkeep.follow_epoch()
    rig.keys.away = True
    with pytest.raises(StoreUnavailable):
        await rig.auth.authenticate(kept.text)


async def test_what_was_read_before_the_epoch_was_lost_is_doubted_too(rig: Rig) -> None:
    """A query that began before does not count as an answer to the doubt."""
    token = rig.issue()
    rig.keys.gate.clear()
    early = asyncio.create_task(rig.auth.authenticate(token.text))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rig.auth.doubt_all()
    rig.revoke(token)
    rig.keys.gate.set()
    await early
    assert await rig.refuses(token.text)


async def test_last_use_is_written_once_a_minute(rig: Rig) -> None:
    """The first use is written at the next round, later ones a minute after it, none is lost."""
    upkeep = AuthUpkeep(rig.auth, rig.keys, FakeEpoch(), rig.clock)
    token = rig.issue()
    key_id = rig.keys.records[token.kid].principal.key_id
    await rig.auth.authenticate(token.text)
    await upkeep.write_used()
    rig.clock.now_s += 7
    await rig.auth.authenticate(token.text)
    await upkeep.write_used()
    assert rig.keys.touched == [{key_id: _at(START_S)}]
    rig.clock.now_s += 60
    await upkeep.write_used()
    assert rig.keys.touched[1:] == [{key_id: _at(START_S + 7)}]


async def test_last_use_waits_for_a_store_that_is_away(rig: Rig) -> None:
    """What could not be written is written later."""
    upkeep = AuthUpkeep(rig.auth, rig.keys, FakeEpoch(), rig.clock)
    token = rig.issue()
    await rig.auth.authenticate(token.text)
    rig.keys.away = True
    await upkeep.write_used()
    rig.keys.away = False
    await upkeep.write_used()
    assert len(rig.keys.touched) == 1


async def test_the_last_uses_are_written_at_the_end(rig: Rig) -> None:
    """Leaving the upkeep writes even a key whose minute is not over."""
    upkeep = AuthUpkeep(rig.auth, rig.keys, FakeEpoch(), rig.clock)
    token = rig.issue()
    async with upkeep.running():
        await rig.auth.authenticate(token.text)
        await upkeep.write_used()
        rig.clock.now_s += 1
        await rig.auth.authenticate(token.text)
    assert len(rig.keys.touched) == 2


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
