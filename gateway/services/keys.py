"""API keys: issued, listed, revoked. A token is shown once and never stored."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from gateway.credentials import KEY_PREFIX, Secrets, is_kid, new_token
from gateway.domain import ApiKey, IssuedKey, KeySecret, Tier
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import AuthEpoch, Clock, KeyStore
from gateway.services.auth import Authenticator
from gateway.services.tenants import TenantService, require_name

_EXPIRES_IN_S_MAX = 100 * 366 * 86_400


class KeyService:
    """Issue and end keys for an admin; who may call this is decided above."""

    def __init__(
        self,
        keys: KeyStore,
        tenants: TenantService,
        secrets: Secrets,
        authenticator: Authenticator,
        epoch: AuthEpoch,
        *,
        clock: Clock = time,
    ) -> None:
        self._keys = keys
        self._tenants = tenants
        self._secrets = secrets
        self._authenticator = authenticator
        self._epoch = epoch
        self._clock = clock

    async def create(
        self,
        tenant: str,
        *,
        name: str = "default",
        expires_in_s: float | None = None,
        max_tier: Tier = Tier.DEFAULT,
    ) -> IssuedKey:
        """Issue a key of a tenant, named by its name; `max_tier` is the best that it can ask for.

        Raises: `InvalidRequest`: name or expiry; `NotFound`: no such tenant.
        """
        require_name(name, param="name")
        expires_at = self._expiry(expires_in_s)
        owner = await self._tenants.get(tenant)
        token = new_token(KEY_PREFIX)
        secret = KeySecret(pepper_id=self._secrets.pepper_id, mac=self._secrets.key_mac(token))
        key = await self._keys.add(
            owner,
            kid=token.kid,
            name=name,
            secret=secret,
            expires_at=expires_at,
            max_tier=max_tier,
        )
        return IssuedKey(key=key, token=token.text)

    async def list(self, tenant: str | None = None) -> Sequence[ApiKey]:
        """Return the keys of a tenant, or of all. Raises: `NotFound`: no such tenant."""
        organisation = await self._tenants.organisation()
        tenant_id = None if tenant is None else (await self._tenants.get(tenant)).id
        return await self._keys.list(organisation.id, tenant_id)

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key, named by its id or kid, at once. Raises: `NotFound`."""
        organisation = await self._tenants.organisation()
        named = key_id if is_kid(key_id) else _uuid(key_id)
        key = None if named is None else await self._keys.revoke(organisation.id, named)
        if key is None:
            raise NotFound("There is no key of that id.", param="key_id")
        self._authenticator.forget(key.kid)
        await self._epoch.advance()
        return key

    def _expiry(self, expires_in_s: float | None) -> datetime | None:
        if expires_in_s is None:
            return None
        if not math.isfinite(expires_in_s) or not 0 < expires_in_s <= _EXPIRES_IN_S_MAX:
            raise InvalidRequest(
                "'expires_in_s' must be above 0 seconds and at most 100 years.",
                param="expires_in_s",
            )
        return datetime.fromtimestamp(self._clock.time() + expires_in_s, UTC)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
