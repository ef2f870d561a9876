"""From an admin's token to who speaks: the first thing that happens to every administration call.

Three credentials open the admin API: tokens in the store, each with its role; the one that this
process made for its own machine, an owner's; and keys of tenants that have `admin_read`, which
read what a viewer of their tenant may. Every refusal is the same `AuthenticationFailed`. A token is
looked up every time, so one that is revoked is dead at once, everywhere. Only while the store does
not answer is one good that was when it last did, for a grace time: metrics are watched then most.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, Secrets, Token, parse_token
from gateway.domain.admin import Admin, AdminRole, AdminTokenRecord
from gateway.errors import AuthenticationFailed, StoreUnavailable
from gateway.ports import AdminTokenStore, Clock
from gateway.services.auth import Authenticator
from gateway.services.one_flight import OneFlight

LOCAL: Final = "local"
_MAX_SEEN: Final = 1000
_PATIENCE_S: Final = 1.0


class AdminAuthenticator:
    """Tell who an admin token speaks for.

    `keys` lets in tenants' keys with `admin_read`; without it there are tokens alone. `grace_s` is
    how long a token is good that the store last knew, while it does not answer.
    """

    def __init__(
        self,
        tokens: AdminTokenStore,
        secrets: Secrets,
        organisation_id: UUID,
        *,
        local_token: Token | None = None,
        keys: Authenticator | None = None,
        clock: Clock = time,
        grace_s: float = 0.0,
    ) -> None:
        self._tokens = tokens
        self._secrets = secrets
        self._organisation_id = organisation_id
        self._local_mac = None if local_token is None else secrets.admin_mac(local_token)
        self._keys = keys
        self._clock = clock
        self._grace_s = grace_s
        # By kid: when the store answered last, and what.
        self._seen: dict[str, tuple[float, AdminTokenRecord]] = {}
        self._asking: OneFlight[str, AdminTokenRecord | None] = OneFlight()

    async def authenticate(self, text: str) -> Admin:
        """Return who speaks. Raises: `AuthenticationFailed`, `StoreUnavailable`."""
        if self._keys is not None and text.startswith(KEY_PREFIX):
            return await self._reader(self._keys, text)
        token = parse_token(text, ADMIN_PREFIX)
        if token is None:
            raise AuthenticationFailed(detail="malformed")
        mac = self._secrets.admin_mac(token)
        if self._local_mac is not None and hmac.compare_digest(mac, self._local_mac):
            return Admin(LOCAL, AdminRole.OWNER, self._organisation_id)
        record = await self._find(token.kid)
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

    async def _find(self, kid: str) -> AdminTokenRecord | None:
        """Ask the store; a token that it knew in the grace time need not wait for its answer."""
        seen = self._seen.get(kid)
        if seen is None or self._clock.monotonic() - seen[0] > self._grace_s:
            return await self._ask(kid)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._asking.ask(kid, lambda: self._ask(kid))
        except (StoreUnavailable, TimeoutError):
            return seen[1]

    async def _ask(self, kid: str) -> AdminTokenRecord | None:
        record = await self._tokens.find(kid)
        self._seen.pop(kid, None)
        if record is not None:
            if len(self._seen) >= _MAX_SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[kid] = (self._clock.monotonic(), record)
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
        )
