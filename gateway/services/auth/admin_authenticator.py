"""From an admin's token to who speaks: the first thing that happens to every administration call.

Three credentials open the admin API: tokens in the store, each with its role; the one that this
process made for its own machine, an owner's; and keys of tenants that have `admin_read`, which
read what a viewer of their tenant may. Every refusal is the same `AuthenticationFailed`. A token
that we cannot have issued (`issued`) is not looked up. Who is bound to a tenant spends of its
tenant's rate of reads, whatever is then asked.

A token is looked up once in its life in memory, less than 10 s, whatever the answer was. A
revocation ends that at once in the process that makes it, and in others within a second: the epoch
of tokens, which a revocation moves before it is acknowledged, is looked at twice a second. What
changes something does not wait for that and compares the epoch itself; where that cannot be read,
the store is asked.

Metrics alone are watched most while the store does not answer. A caller that says so gets what was
known of a token when it last did, for a grace time, unless a token was revoked since, here or
elsewhere: the epoch is compared first. Where Redis is away with the store, this process's own
revocations still count.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from gateway.background import Background
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, Secrets, Token, parse_token
from gateway.domain.admin import Admin, AdminRole, AdminTokenRecord
from gateway.errors import AuthenticationFailed, StoreUnavailable
from gateway.ports import AdminTokenStore, AuthEpoch, Clock
from gateway.services.auth.authenticator import Authenticator
from gateway.services.auth.issued import IssuedTokens
from gateway.services.auth.upkeep import EPOCH_INTERVAL_S
from gateway.services.expiring_cache import ExpiringCache
from gateway.services.one_flight import OneFlight
from gateway.services.read_rate import CHANGE_READS, ReadRate

LOCAL: Final = "local"
_MAX_SEEN, _MAX_UNKNOWN = 1000, 1000
# What was looked up is known for so long; less than ten seconds with the jitter.
_LIFE_S, _LIFE_JITTER = 8.5, 0.1
_UNKNOWN_S: Final = 5.0
_PATIENCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """Remember what the store answered, when, and at which epoch it was asked.

    Past `confirm_at`, or once there are more doubts, it is asked again.
    """

    at: float
    confirm_at: float
    epoch: int | None
    num_doubts: int
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
        # By kid: of strangers' tokens nothing gets in, as the store knows none of them.
        self._seen: ExpiringCache[_Seen] = ExpiringCache(
            max_entries=_MAX_SEEN, ttl_s=max(grace_s, _LIFE_S * (1 + _LIFE_JITTER))
        )
        self._unknown: ExpiringCache[bool] = ExpiringCache(
            max_entries=_MAX_UNKNOWN, ttl_s=_UNKNOWN_S
        )
        self._heard: int | None = None
        self._generation = 0
        self._num_doubts = 0
        self._asking: OneFlight[str, AdminTokenRecord | None] = OneFlight()

    async def authenticate(
        self, text: str, *, from_memory: bool = False, is_change: bool = False, reads: int = 1
    ) -> Admin:
        """Return who speaks.

        `from_memory`: what was known may do while the store is silent. `is_change`: what is known
        does only where nothing was revoked since, as the epoch has it now. `reads`: what it counts
        of its tenant's; a change counts `CHANGE_READS`.
        Raises: `AuthenticationFailed`, `StoreUnavailable`; `TenantLimited`: its tenant has asked
        too often.
        """
        admin = await self._known(text, from_memory=from_memory, is_change=is_change)
        if self._reads is not None and admin.tenant_id is not None:
            await self._reads.admit(admin.tenant_id, CHANGE_READS if is_change else reads)
        return admin

    async def _known(self, text: str, *, from_memory: bool, is_change: bool) -> Admin:
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
        record = await self._find(token.kid, from_memory=from_memory, is_change=is_change)
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

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hear of other processes' revocations while the block runs."""
        await self.follow_epoch()
        name = "upkeep of admin tokens"
        async with Background(name, self.follow_epoch, interval_s=EPOCH_INTERVAL_S):
            yield

    async def follow_epoch(self) -> None:
        """Have every token looked up again if one was revoked somewhere since the last look."""
        epoch = await self._epoch.current()
        if epoch is None or epoch == self._heard:
            return
        self._heard = epoch
        # Kept for who asks for memory, which the epoch is compared for.
        self._num_doubts += 1
        self._asking.forget()

    def forget(self, kid: str) -> None:
        """Drop what is remembered of a token, the answers to running queries included."""
        self._generation += 1
        self._asking.forget()
        self._seen.discard(kid.encode("ascii"))

    async def _find(
        self, kid: str, *, from_memory: bool, is_change: bool
    ) -> AdminTokenRecord | None:
        digest, now = kid.encode("ascii"), self._clock.monotonic()
        if self._unknown.get(digest, now):
            return None
        seen = self._seen.get(digest, now)
        if seen is None or now >= seen.confirm_at or seen.num_doubts != self._num_doubts:
            if from_memory and seen is not None and now - seen.at <= self._grace_s:
                return await self._ask_or_remember(kid, seen)
        elif not is_change:
            return seen.record
        else:
            epoch = await self._epoch.current()
            if epoch is not None and epoch == seen.epoch and self._is_remembered(digest, seen):
                return seen.record
            # Not by a query that began before: it may not know of the revocation.
            return await self._ask(kid)
        return await (self._ask(kid) if is_change else self._ask_together(kid))

    async def _ask_or_remember(self, kid: str, seen: _Seen) -> AdminTokenRecord | None:
        """Ask the store; one that it knew within the grace need not wait long for its answer."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._ask_together(kid)
        except (StoreUnavailable, TimeoutError) as exc:
            epoch = await self._epoch.current()
            # It may have been revoked here meanwhile, or elsewhere; an epoch that cannot be read
            # tells nothing.
            is_other = epoch is not None and epoch != seen.epoch
            if is_other or not self._is_remembered(kid.encode("ascii"), seen):
                raise StoreUnavailable(detail=repr(exc), retry_after_s=1) from exc
            return seen.record

    def _is_remembered(self, digest: bytes, seen: _Seen) -> bool:
        return self._seen.get(digest, self._clock.monotonic()) is seen

    async def _ask_together(self, kid: str) -> AdminTokenRecord | None:
        return await self._asking.ask(kid, lambda: self._ask(kid))

    async def _ask(self, kid: str) -> AdminTokenRecord | None:
        generation, num_doubts = self._generation, self._num_doubts
        epoch = await self._epoch.current()
        record = await self._tokens.find(kid)
        if generation != self._generation:
            return record
        digest, now = kid.encode("ascii"), self._clock.monotonic()
        if record is None:
            self._seen.discard(digest)
            self._unknown.put(digest, True, now)
        else:
            life_s = _LIFE_S * (1 + random.uniform(-_LIFE_JITTER, _LIFE_JITTER))
            self._seen.put(digest, _Seen(now, now + life_s, epoch, num_doubts, record), now)
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
