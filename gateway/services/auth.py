"""From a token to a `Principal`: the first thing that happens to every request.

A token passes, in this order: form and checksum (no I/O), the cache of refused tokens, the
cache of live ones, one query. Both caches are keyed by SHA-256 of the whole token, so tokens
that differ in one byte never share an entry; they are separate, so a flood of wrong tokens
cannot push out the live ones. Requests that miss together wait for one query. It all runs on
the event loop's thread.

A revocation, or a change of a tenant, empties its entries at once here (`forget`), within a second
in other processes (the epoch, see `auth_upkeep`), and after the cache's life at the latest (11 s)
where Redis is away. A query that began before does not enter the cache after it.

Every refusal is the same `AuthenticationFailed`, and an unknown `kid` costs a MAC as a known
one does.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from gateway.credentials import (
    ADMIN_PREFIX,
    KEY_PREFIX,
    Secrets,
    Token,
    parse_token,
    token_digest,
)
from gateway.domain import KeyRecord, KeySecret, Principal
from gateway.errors import AuthenticationFailed
from gateway.ports import AdminTokenStore, Clock, KeyStore
from gateway.services.expiring_cache import ExpiringCache

_LIVE_TTL_S, _LIVE_JITTER, _LIVE_ENTRIES = 10.0, 0.1, 50_000
_REFUSED_TTL_S, _REFUSED_ENTRIES = 5.0, 50_000
_NO_SECRET = KeySecret(pepper_id="", mac=bytes(32))


@dataclass(frozen=True, slots=True)
class _Live:
    principal: Principal
    expires_at_s: float
    changes_at_s: float = float("inf")


class Authenticator:
    """Tell on whose behalf a token speaks."""

    def __init__(self, keys: KeyStore, secrets: Secrets, clock: Clock = time) -> None:
        self._keys = keys
        self._secrets = secrets
        self._clock = clock
        self._live: ExpiringCache[_Live] = ExpiringCache(
            max_entries=_LIVE_ENTRIES, ttl_s=_LIVE_TTL_S, jitter=_LIVE_JITTER
        )
        self._refused: ExpiringCache[bool] = ExpiringCache(
            max_entries=_REFUSED_ENTRIES, ttl_s=_REFUSED_TTL_S
        )
        self._loading: dict[bytes, asyncio.Task[_Live | None]] = {}
        self._generation = 0
        self._used: dict[UUID, datetime] = {}

    async def authenticate(self, text: str) -> Principal:
        """Return the principal of a live token.

        Raises: `AuthenticationFailed`: any other token; `StoreUnavailable`: it is in no cache
        and the store does not answer.
        """
        token = parse_token(text, KEY_PREFIX)
        if token is None:
            raise AuthenticationFailed(detail="malformed")
        digest = token_digest(text)
        now = self._clock.monotonic()
        if self._refused.get(digest, now):
            raise AuthenticationFailed(detail=f"refused before: {token.kid}")
        live = self._live.get(digest, now)
        if live is None or self._clock.time() >= live.changes_at_s:
            live = await self._load_once(digest, token)
        now_s = self._clock.time()
        if live is None or now_s >= live.expires_at_s:
            raise AuthenticationFailed(detail=f"not a live key: {token.kid}")
        self._used[live.principal.key_id] = datetime.fromtimestamp(now_s, UTC)
        return live.principal

    def forget(self, kid: str) -> None:
        """Drop what the cache holds of a key, the answers to running queries included."""
        self._generation += 1
        self._loading.clear()
        self._live.drop(lambda live: live.principal.kid == kid)

    def forget_tenant(self, tenant_id: UUID) -> None:
        """Drop what the cache holds of a tenant's keys, the answers to running queries included."""
        self._generation += 1
        self._loading.clear()
        self._live.drop(lambda live: live.principal.tenant_id == tenant_id)

    def forget_all(self) -> None:
        """Drop the cache of live keys."""
        self._generation += 1
        self._loading.clear()
        self._live.clear()

    def take_used(self) -> Mapping[UUID, datetime]:
        """Hand over which keys were used, and when last, since this was called before."""
        used, self._used = self._used, {}
        return used

    async def _load_once(self, digest: bytes, token: Token) -> _Live | None:
        task = self._loading.get(digest)
        if task is None:
            task = asyncio.create_task(self._load(digest, token))
            self._loading[digest] = task
            task.add_done_callback(lambda done: self._loaded(digest, done))
        # Shielded: a client that leaves must not fail the others who wait for the same answer.
        return await asyncio.shield(task)

    def _loaded(self, digest: bytes, task: asyncio.Task[_Live | None]) -> None:
        if self._loading.get(digest) is task:
            del self._loading[digest]
        if not task.cancelled():
            task.exception()  # retrieved here too: every waiter may have left

    async def _load(self, digest: bytes, token: Token) -> _Live | None:
        generation = self._generation
        record = await self._keys.find(token.kid)
        live = self._verify(token, record)
        now = self._clock.monotonic()
        if live is None:
            self._refused.put(digest, True, now)
        elif generation == self._generation:
            self._live.put(digest, live, now)
        return live

    def _verify(self, token: Token, record: KeyRecord | None) -> _Live | None:
        secrets = record.secrets if record is not None else ()
        secret = _matching(
            self._secrets.key_mac(token), self._secrets.pepper_id, secrets or (_NO_SECRET,)
        )
        if record is None or secret is None or record.revoked_at is not None:
            return None
        ends = [at.timestamp() for at in (record.expires_at, secret.expires_at) if at is not None]
        changes = (record.changes_at,) if record.changes_at is not None else ()
        live = _Live(
            record.principal,
            min(ends, default=float("inf")),
            min((at.timestamp() for at in changes), default=float("inf")),
        )
        return live if self._clock.time() < live.expires_at_s else None


class AdminAuthenticator:
    """Admit admin tokens: those in the store, and the one this process made for its machine."""

    def __init__(
        self, tokens: AdminTokenStore, secrets: Secrets, local_token: Token | None = None
    ) -> None:
        self._tokens = tokens
        self._secrets = secrets
        self._local_mac = None if local_token is None else secrets.admin_mac(local_token)

    async def authenticate(self, text: str) -> None:
        """Return where the token is good. Raises: `AuthenticationFailed`, `StoreUnavailable`."""
        token = parse_token(text, ADMIN_PREFIX)
        if token is None:
            raise AuthenticationFailed(detail="malformed")
        mac = self._secrets.admin_mac(token)
        if self._local_mac is not None and hmac.compare_digest(mac, self._local_mac):
            return
        stored = await self._tokens.find(token.kid) or _NO_SECRET
        if _matching(mac, self._secrets.pepper_id, (stored,)) is None:
            raise AuthenticationFailed(detail=f"not an admin token: {token.kid}")


def _matching(mac: bytes, pepper_id: str, secrets: tuple[KeySecret, ...]) -> KeySecret | None:
    """Return the secret of this MAC; every one is compared, found or not."""
    found = None
    for secret in secrets:
        same = hmac.compare_digest(mac, secret.mac)
        if same and secret.pepper_id == pepper_id:
            found = secret
    return found
