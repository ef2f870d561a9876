"""API keys: issued, changed, rotated, listed, revoked. A token is shown once and never stored.

A rotation gives a key a second secret under the same public id; the first lives on for its grace.
Whoever is bound to a tenant names it in `within`: keys of others are then not there. What an
operator has set of a key to hold it to something stays, whoever else may change the key; a new key
is held to nothing of that, which is what ceilings of a tenant are for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from gateway.credentials import KEY_PREFIX, Secrets, Token, is_kid
from gateway.domain import ApiKey, IssuedKey, KeyDraft, KeyRef, KeySecret, Tier
from gateway.domain.admin import Actor
from gateway.domain.ceilings import held_fields
from gateway.domain.page import Page, PageRequest
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import AuthEpoch, Clock, KeyStore
from gateway.services.admin.ceilings import check_key
from gateway.services.admin.tenants import TenantService, require_name
from gateway.services.auth import Authenticator, checked_cidrs, checked_models, tell_ended

EXPIRES_IN_S_MAX: Final = 100 * 366 * 86_400
GRACE_S: Final = 86_400.0
GRACE_S_MAX: Final = 604_800.0


class KeyService:
    """Issue, change and end keys for an admin; who may call this is decided above."""

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
        actor: Actor,
        tenant: str,
        *,
        name: str = "default",
        expires_in_s: float | None = None,
        max_tier: Tier | None = None,
        models: list[str] | None = None,
        cidrs: list[str] | None = None,
        allows_batch: bool = True,
        admin_read: bool = False,
        within: UUID | None = None,
    ) -> IssuedKey:
        """Issue a key of a tenant, named by its name; the rest is as `ApiKey` has it.

        Without a tier it is the default, or the tenant's highest where that is below.
        Raises: `InvalidRequest`: name, expiry, models or networks; `AboveCeiling`; `NotFound`: no
        such tenant.
        """
        require_name(name, param="name")
        expires_at = expiry(expires_in_s, self._clock)
        models_of, cidrs_of = checked_models(models), checked_cidrs(cidrs)
        owner = await self._tenants.get(tenant, within=within)
        named: dict[str, object] = {
            "models": models_of,
            "cidrs": cidrs_of,
            "allows_batch": allows_batch,
        }
        if max_tier is not None:
            named["max_tier"] = max_tier
        check_key(owner.ceilings, named)
        token = self._secrets.issue(KEY_PREFIX)
        draft = KeyDraft(
            kid=token.kid,
            name=name,
            secret=key_secret(self._secrets, token),
            expires_at=expires_at,
            max_tier=max_tier or Tier.DEFAULT.capped(owner.ceilings.max_tier),
            models=models_of,
            cidrs=cidrs_of,
            allows_batch=allows_batch,
            admin_read=admin_read,
            operator_set=() if actor.is_of_tenant else held_fields((), named),
        )
        return IssuedKey(key=await self._keys.add(actor, owner, draft), token=token.text)

    async def page(
        self,
        request: PageRequest,
        *,
        tenant: str | None = None,
        within: UUID | None = None,
        is_live: bool = False,
    ) -> Page[ApiKey]:
        """Return the keys of a tenant, or of all, oldest first; `is_live`: those alone that are.

        Raises: `NotFound`: no such tenant; `InvalidRequest`: the cursor.
        """
        organisation = await self._tenants.organisation()
        if tenant is not None:
            within = (await self._tenants.get(tenant, within=within)).id
        return await self._keys.page(organisation.id, within, request, is_live=is_live)

    async def get(self, key_id: str, *, within: UUID | None = None) -> ApiKey:
        """Return a key, named by its id or kid. Raises: `NotFound`."""
        return _found(await self._keys.get(await self._ref(key_id, within)))

    async def update(
        self,
        actor: Actor,
        key_id: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
        within: UUID | None = None,
    ) -> ApiKey:
        """Set `name`, `max_tier`, `models`, `cidrs`, `allows_batch`, `admin_read`.

        It holds for the key's next request. Raises: `InvalidRequest`; `AboveCeiling`; `NotFound`;
        `SetByOperator`; `VersionConflict`: `version` is given, and not the present one.
        """
        values = checked_key(changes)
        ref = await self._ref(key_id, within)
        present = _found(await self._keys.get(ref))
        check_key((await self._tenants.get(present.tenant, within=within)).ceilings, values)
        key = _found(await self._keys.update(actor, ref, values, version=version))
        await self._forget(key)
        return key

    async def rotate(
        self,
        actor: Actor,
        key_id: str,
        *,
        grace_s: float = GRACE_S,
        within: UUID | None = None,
    ) -> IssuedKey:
        """Give a key a new secret; the present one ends after the grace, an older one now.

        Raises: `InvalidRequest`: the grace; `NotFound`; `Conflict`: the key is not active.
        """
        if not 0 <= grace_s <= GRACE_S_MAX:
            raise InvalidRequest(
                f"'grace_s' must be 0 to {GRACE_S_MAX:.0f} seconds.", param="grace_s"
            )
        ref = await self._ref(key_id, within)
        key = _found(await self._keys.get(ref))
        token = self._secrets.issue(KEY_PREFIX, key.kid)
        ends_at = None
        if grace_s > 0:
            ends_at = datetime.fromtimestamp(self._clock.time() + grace_s, UTC)
            # What ends with its key shows the key's end.
            ends_at = ends_at if key.expires_at is None else min(ends_at, key.expires_at)
        rotated = await self._keys.rotate(
            actor, ref, key_secret(self._secrets, token), old_ends_at=ends_at
        )
        await self._forget(_found(rotated))
        return IssuedKey(key=_found(rotated), token=token.text)

    async def revoke(self, actor: Actor, key_id: str, *, within: UUID | None = None) -> ApiKey:
        """End a key, named by its id or kid, at once. Raises: `NotFound`."""
        key = _found(await self._keys.revoke(actor, await self._ref(key_id, within)))
        self._authenticator.forget(key.kid)
        await tell_ended(self._epoch, key.kid)
        return key

    async def _ref(self, key_id: str, within: UUID | None) -> KeyRef:
        named = key_id if is_kid(key_id) else uuid_of(key_id)
        if named is None:
            raise _no_key()
        return KeyRef((await self._tenants.organisation()).id, named, within)

    async def _forget(self, key: ApiKey) -> None:
        self._authenticator.forget(key.kid)
        await self._epoch.advance(key.kid)


def checked_key(changes: Mapping[str, object]) -> dict[str, Any]:  # what `ApiKey` takes
    """Return changes of a key as it keeps them. Raises: `InvalidRequest`."""
    values = dict(changes)
    if "name" in values:
        require_name(str(values["name"]), param="name")
    if "models" in values:
        values["models"] = checked_models(values["models"])
    if "cidrs" in values:
        values["cidrs"] = checked_cidrs(values["cidrs"])
    return values


def key_secret(secrets: Secrets, token: Token) -> KeySecret:
    """Return what is kept of a token."""
    return KeySecret(
        pepper_id=secrets.pepper_id,
        mac=secrets.key_mac(token),
        is_tagged=secrets.is_tagged(token),
    )


def expiry(expires_in_s: float | None, clock: Clock) -> datetime | None:
    """Return when a life of so many seconds from now ends. Raises: `InvalidRequest`."""
    if expires_in_s is None:
        return None
    if not math.isfinite(expires_in_s) or not 0 < expires_in_s <= EXPIRES_IN_S_MAX:
        raise InvalidRequest(
            "'expires_in_s' must be above 0 seconds and at most 100 years.",
            param="expires_in_s",
        )
    return datetime.fromtimestamp(clock.time() + expires_in_s, UTC)


def uuid_of(text: str) -> UUID | None:
    """Read an id, or return None."""
    try:
        return UUID(text)
    except ValueError:
        return None


def _found(key: ApiKey | None) -> ApiKey:
    if key is None:
        raise _no_key()
    return key


def _no_key() -> NotFound:
    return NotFound("There is no key of that id.", param="key_id")
