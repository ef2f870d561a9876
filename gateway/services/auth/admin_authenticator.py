"""From an admin's token to who speaks: the first thing that happens to every administration call.

Three credentials open the admin API: tokens in the store, each with its role; the one that this
process made for its own machine, an owner's; and keys of tenants that have `admin_read`, which
read what a viewer of their tenant may. Every refusal is the same `AuthenticationFailed`. A token is
looked up every time, so one that is revoked is dead at once, everywhere; but for one that we cannot
have issued (`issued`). Who is bound to a tenant spends of its tenant's rate of reads, whatever is
then asked.

Metrics alone are watched most while the store does not answer. A caller that says so gets what was
known of a token when it last did, for a grace time, unless a token was revoked since, here or
elsewhere: the epoch of tokens, which a revocation moves before it is acknowledged, is compared
first. Where Redis is away with the store, this process's own revocations still count.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, Secrets, Token, parse_token
from gateway.domain.admin import Admin, AdminRole, AdminTokenRecord
from gateway.errors import AuthenticationFailed, StoreUnavailable
from gateway.ports import AdminTokenStore, AuthEpoch, Clock
from gateway.services.auth.authenticator import Authenticator
from gateway.services.auth.issued import IssuedTokens
from gateway.services.one_flight import OneFlight
from gateway.services.read_rate import ReadRate

LOCAL: Final = "local"
_MAX_SEEN: Final = 1000
_PATIENCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """Remember what the store answered, when, and at which epoch it was asked."""

    at: float
    epoch: int | None
    record: AdminTokenRecord


class AdminAuthenticator:
    """Tell who an admin token speaks for.

    `keys` lets in tenants' keys with `admin_read`; without it there are tokens alone. `issued`
    knows which tokens may be ours; without it every well-formed one is asked for. `grace_s` is how
    long a token that the store knew opens what may be read from memory.
    """

    def __init__(
        self,
        tokens: AdminTokenStore,
        secrets: Secrets,
        organisation_id: UUID,
        epoch: AuthEpoch,
        *,
        local_token: Token | None = None,
        keys: Authenticator | None = None,
        issued: IssuedTokens | None = None,
        clock: Clock = time,
        grace_s: float = 0.0,
        reads: ReadRate | None = None,
    ) -> None:
        self._tokens = tokens
        self._secrets = secrets
        self._organisation_id = organisation_id
        self._epoch = epoch
        self._local_mac = None if local_token is None else secrets.admin_mac(local_token)
        self._keys = keys
        self._issued = issued
        self._clock = clock
        self._grace_s = grace_s
        self._reads = reads
        self._seen: dict[str, _Seen] = {}
        self._generation = 0
        self._asking: OneFlight[str, AdminTokenRecord | None] = OneFlight()

    async def authenticate(self, text: str, *, from_memory: bool = False) -> Admin:
        """Return who speaks; `from_memory`, what was known may do while the store is silent.

        Raises: `AuthenticationFailed`, `StoreUnavailable`; `TenantLimited`: its tenant has asked
        too often.
        """
        admin = await self._known(text, from_memory=from_memory)
        if self._reads is not None and admin.tenant_id is not None:
            self._reads.charge(admin.tenant_id)
        return admin

    async def _known(self, text: str, *, from_memory: bool) -> Admin:
        if self._keys is not None and text.startswith(KEY_PREFIX):
            return await self._reader(self._keys, text)
        token = parse_token(text, ADMIN_PREFIX)
        if token is None:
            raise AuthenticationFailed(detail="malformed")
        mac = self._secrets.admin_mac(token)
        if self._local_mac is not None and hmac.compare_digest(mac, self._local_mac):
            return Admin(LOCAL, AdminRole.OWNER, self._organisation_id)
        if self._issued is not None and not self._issued.may_hold(token, mac):
            raise AuthenticationFailed(detail=f"not an admin token of ours: {token.kid}")
        find = self._find_or_remember if from_memory else self._tokens.find
        record = await find(token.kid)
        same = hmac.compare_digest(mac, bytes(32) if record is None else record.mac)
        if record is None or not same or record.pepper_id != self._secrets.pepper_id:
            raise AuthenticationFailed(detail=f"not an admin token: {token.kid}")
        known = record.token
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        if known.revoked_at is not None or (
            known.expires_at is not None and known.expires_at <= now
        ):
            raise AuthenticationFailed(detail=f"not a live admin token: {token.kid}")
        return Admin(known.name, known.role, self._organisation_id, known.tenant_id)

    def forget(self, kid: str) -> None:
        """Drop what is remembered of a token, the answers to running queries included."""
        self._generation += 1
        self._asking.forget()
        self._seen.pop(kid, None)

    async def _find_or_remember(self, kid: str) -> AdminTokenRecord | None:
        """Ask the store; one that it knew within the grace need not wait long for its answer."""
        seen = self._seen.get(kid)
        if seen is None or self._clock.monotonic() - seen.at > self._grace_s:
            return await self._ask(kid)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._asking.ask(kid, lambda: self._ask(kid))
        except (StoreUnavailable, TimeoutError) as exc:
            epoch = await self._epoch.current()
            # It may have been revoked here meanwhile, or elsewhere; an epoch that cannot be read
            # tells nothing.
            if self._seen.get(kid) is not seen or (epoch is not None and epoch != seen.epoch):
                raise StoreUnavailable(detail=repr(exc), retry_after_s=1) from exc
            return seen.record

    async def _ask(self, kid: str) -> AdminTokenRecord | None:
        generation, epoch = self._generation, await self._epoch.current()
        record = await self._tokens.find(kid)
        if generation != self._generation:
            return record
        self._seen.pop(kid, None)
        if record is not None:
            if len(self._seen) >= _MAX_SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[kid] = _Seen(self._clock.monotonic(), epoch, record)
        return record

    async def _reader(self, keys: Authenticator, text: str) -> Admin:
        principal = await keys.authenticate(text)
        if not principal.admin_read:
            raise AuthenticationFailed(detail=f"a key without admin_read: {principal.kid}")
        return Admin(
            f"key:{principal.kid}",
            AdminRole.TENANT_VIEWER,
            principal.organisation_id,
            principal.tenant_id,
            principal.cidrs,
            principal.tenant_cidrs,
        )
