"""From a token to a `Principal`: the first thing that happens to every request.

A token passes, in this order: the cache of live ones, form and checksum (no I/O), the cache of
refused tokens, its tag (`issued`: what we never issued is asked of nobody), one query. Both caches
are keyed by SHA-256 of the whole token, so tokens that differ in one byte never share an entry;
they are separate, so a flood of wrong tokens cannot push out the live ones. Requests that miss
together wait for one query; a key that is in use is asked for again before its life in the cache is
over, for which nobody waits. It all runs on the event loop's thread.

A revocation, or a change of a tenant, empties its entries at once here (`forget`), within a second
in other processes (the epoch, see `upkeep`), and after the cache's life at the latest (less
than 10 s) where Redis is away. A query that began before does not enter the cache after it. Where
Redis has lost the epoch, nobody knows whether there was a change: what is cached is asked for again
before its next use (`doubt_all`).

Where the store does not answer, a key that was live when it last did stays so for a grace time:
a cached principal is asked for again after its life, and kept when there is no answer; one request
a second asks, and the others do not wait for it. It is never a key that the store has not confirmed
in this process, nor one that was forgotten since.

Every refusal is the same `AuthenticationFailed`, and an unknown `kid` costs a MAC as a known
one does.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from gateway.credentials import KEY_PREFIX, Secrets, Token, parse_token, token_digest
from gateway.domain import KeyRecord, KeySecret, Principal
from gateway.domain.timeline import Timeline
from gateway.errors import AuthenticationFailed, StoreUnavailable
from gateway.ports import Clock, KeyStore
from gateway.services.auth.issued import IssuedTokens
from gateway.services.expiring_cache import ExpiringCache
from gateway.services.one_flight import OneFlight
from gateway.telemetry import names

GRACE_S: Final = 300.0
_LIVE_TTL_S, _LIVE_JITTER, _LIVE_ENTRIES = 8.5, 0.1, 50_000
# Of its life, after which who uses a key has it asked for again.
_AHEAD: Final = 0.7
_REFUSED_TTL_S, _REFUSED_ENTRIES = 5.0, 50_000
# Who has a live principal waits this long for its confirmation, less where the last one failed, and
# after a failure not at all for this long: with a store that hangs, requests go on.
_PATIENCE_S, _LITTLE_PATIENCE_S, _ASK_AGAIN_S = 1.0, 0.2, 1.0
_NO_SECRET = KeySecret(pepper_id="", mac=bytes(32))


@dataclass(frozen=True, slots=True)
class _Live:
    principal: Principal
    expires_at_s: float
    changes_at_s: float
    ask_ahead_at: float
    confirm_at: float
    num_doubts: int


class Authenticator:
    """Tell on whose behalf a token speaks.

    `issued` knows which tokens may be ours; without it every well-formed one is asked for.
    `grace_s` is how long a cached key is good past its life while the store does not answer.
    """

    def __init__(
        self,
        keys: KeyStore,
        secrets: Secrets,
        clock: Clock = time,
        *,
        issued: IssuedTokens | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._keys = keys
        self._secrets = secrets
        self._issued = issued
        self._clock = clock
        self._live: ExpiringCache[_Live] = ExpiringCache(
            max_entries=_LIVE_ENTRIES, ttl_s=_LIVE_TTL_S + grace_s
        )
        self._refused: ExpiringCache[bool] = ExpiringCache(
            max_entries=_REFUSED_ENTRIES, ttl_s=_REFUSED_TTL_S
        )
        self._loading: OneFlight[bytes, _Live | None] = OneFlight()
        self._generation = 0
        self._num_doubts = 0
        self._used: dict[UUID, datetime] = {}
        self._degraded = False
        self._ask_again_at = float("-inf")

    @property
    def degraded(self) -> bool:
        """Tell whether the store did not answer when it was last asked."""
        return self._degraded

    async def authenticate(self, text: str, timeline: Timeline | None = None) -> Principal:
        """Return the principal of a live token; `timeline` is told who knew of it.

        Raises: `AuthenticationFailed`: any other token; `StoreUnavailable`: it is in no cache
        and the store does not answer.
        """
        digest = token_digest(text)
        now = self._clock.monotonic()
        live = self._live.get(digest, now)
        if live is None or self._is_stale(live, now):
            live = await self._look_up(text, digest, live, timeline)
        else:
            # It was parsed when it was looked up.
            if timeline is not None:
                timeline.note(names.AUTH_CACHE, "cache")
            if now >= max(live.ask_ahead_at, self._ask_again_at):
                token = Token(live.principal.kid, text)
                self._loading.begin(digest, lambda: self._load_ahead(digest, token))
        now_s = self._clock.time()
        if now_s >= live.expires_at_s:
            raise AuthenticationFailed(detail=f"not a live key: {live.principal.kid}")
        self._used[live.principal.key_id] = datetime.fromtimestamp(now_s, UTC)
        return live.principal

    async def _look_up(
        self, text: str, digest: bytes, live: _Live | None, timeline: Timeline | None
    ) -> _Live:
        """Find a key in the store that the cache does not have, or has for too long."""
        token = parse_token(text, KEY_PREFIX)
        if token is None:
            raise AuthenticationFailed(detail="malformed")
        if self._refused.get(digest, self._clock.monotonic()):
            raise AuthenticationFailed(detail=f"refused before: {token.kid}")
        if live is None:
            self._require_issued(token)
            live = await self._load_once(digest, token)
        else:
            live = await self._confirm(digest, token, live)
        if timeline is not None:
            timeline.note(names.AUTH_CACHE, "database")
        if live is None:
            raise AuthenticationFailed(detail=f"not a live key: {token.kid}")
        return live

    def forget(self, kid: str) -> None:
        """Drop what the cache holds of a key, the answers to running queries included."""
        self._generation += 1
        self._loading.forget()
        self._live.drop(lambda live: live.principal.kid == kid)

    def forget_tenant(self, tenant_id: UUID) -> None:
        """Drop what the cache holds of a tenant's keys, the answers to running queries included."""
        self._generation += 1
        self._loading.forget()
        self._live.drop(lambda live: live.principal.tenant_id == tenant_id)

    def forget_changed(self, names: Collection[str] | None) -> None:
        """Drop what the cache holds of these kids and ids of tenants; of all, where it is None."""
        if names is None:
            self.forget_all()
        elif names:
            self._generation += 1
            self._loading.forget()
            self._live.drop(
                lambda live: live.principal.kid in names or str(live.principal.tenant_id) in names
            )

    def forget_all(self) -> None:
        """Drop the cache of live keys."""
        self._generation += 1
        self._loading.forget()
        self._live.clear()

    def doubt_all(self) -> None:
        """Have every cached key confirmed before its next use; kept where nobody answers."""
        self._num_doubts += 1

    def take_used(self) -> Mapping[UUID, datetime]:
        """Hand over which keys were used, and when last, since this was called before."""
        used, self._used = self._used, {}
        return used

    async def dead_keys(self, kids: Collection[str]) -> set[str]:
        """Return those that are revoked or expired, as the store has it; for requests that run.

        They are forgotten here too. Raises: `StoreUnavailable`.
        """
        dead = await self._keys.dead(kids) if kids else set()
        for kid in dead:
            self.forget(kid)
        return dead

    def _require_issued(self, token: Token) -> None:
        if self._issued is None or self._issued.may_hold(token, self._secrets.key_mac(token)):
            return
        raise AuthenticationFailed(detail=f"not a key of ours: {token.kid}")

    def _is_stale(self, live: _Live, now: float) -> bool:
        is_doubted = live.num_doubts != self._num_doubts
        return is_doubted or now >= live.confirm_at or self._clock.time() >= live.changes_at_s

    async def _confirm(self, digest: bytes, token: Token, live: _Live) -> _Live | None:
        """Ask for a cached principal again; without an answer, soon, it stands."""
        now = self._clock.monotonic()
        if now < self._ask_again_at:
            return live
        patience_s = _PATIENCE_S
        if self._degraded:
            self._ask_again_at, patience_s = now + _ASK_AGAIN_S, _LITTLE_PATIENCE_S
        try:
            async with asyncio.timeout(patience_s):
                return await self._load_once(digest, token)
        except (StoreUnavailable, TimeoutError) as exc:
            now = self._clock.monotonic()
            self._degraded = True
            self._ask_again_at = now + _ASK_AGAIN_S
            # It may have been revoked here while we waited; then it is not cached any more.
            known = self._live.get(digest, now)
            if known is None:
                raise StoreUnavailable(detail=repr(exc), retry_after_s=1) from exc
            return known

    async def _load_once(self, digest: bytes, token: Token) -> _Live | None:
        return await self._loading.ask(digest, lambda: self._load(digest, token))

    async def _load_ahead(self, digest: bytes, token: Token) -> _Live | None:
        """Ask for a cached principal before its life is over; soon again where that fails."""
        try:
            return await self._load(digest, token)
        except StoreUnavailable:
            self._ask_again_at = self._clock.monotonic() + _ASK_AGAIN_S
            raise

    async def _load(self, digest: bytes, token: Token) -> _Live | None:
        generation, num_doubts = self._generation, self._num_doubts
        try:
            record = await self._keys.find(token.kid)
        except StoreUnavailable:
            self._degraded = True
            raise
        self._degraded, self._ask_again_at = False, float("-inf")
        live = self._verify(token, record, num_doubts)
        now = self._clock.monotonic()
        if live is None:
            self._live.discard(digest)
            self._refused.put(digest, True, now)
        elif generation == self._generation:
            self._live.put(digest, live, now)
        return live

    def _verify(self, token: Token, record: KeyRecord | None, num_doubts: int) -> _Live | None:
        secrets = record.secrets if record is not None else ()
        secret = _matching(
            self._secrets.key_mac(token), self._secrets.pepper_id, secrets or (_NO_SECRET,)
        )
        if record is None or secret is None or record.revoked_at is not None:
            return None
        principal = record.principal
        if secret.expires_at is not None:
            principal = replace(principal, secret_ends_at=secret.expires_at.timestamp())
        life_s = _LIVE_TTL_S * (1 + random.uniform(-_LIVE_JITTER, _LIVE_JITTER))
        now = self._clock.monotonic()
        live = _Live(
            principal,
            expires_at_s=min(_seconds(record.expires_at), _seconds(secret.expires_at)),
            changes_at_s=_seconds(record.changes_at),
            ask_ahead_at=now + _AHEAD * life_s,
            confirm_at=now + life_s,
            num_doubts=num_doubts,
        )
        return live if self._clock.time() < live.expires_at_s else None


def _seconds(at: datetime | None) -> float:
    return float("inf") if at is None else at.timestamp()


def _matching(mac: bytes, pepper_id: str, secrets: tuple[KeySecret, ...]) -> KeySecret | None:
    """Return the secret of this MAC; every one is compared, found or not."""
    found = None
    for secret in secrets:
        same = hmac.compare_digest(mac, secret.mac)
        if same and secret.pepper_id == pepper_id:
            found = secret
    return found
