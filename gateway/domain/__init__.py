"""The things the gateway speaks of, as data alone: no HTTP, no SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from gateway.domain.ceilings import NO_CEILINGS
from gateway.domain.ceilings import Ceilings as Ceilings
from gateway.domain.quota import ScopeQuota
from gateway.domain.tier import Tier as Tier

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Organisation:
    """Name who runs tenants together."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Org:
    """Name an owner of tenants, which share the machine's service as one, by its `weight`.

    `organisation_id` is who runs the server. A change makes the next `version`.
    """

    id: UUID
    organisation_id: UUID
    name: str
    weight: float
    created_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class TenantSlo:
    """Promise a tenant's requests their times, in milliseconds; None promises nothing.

    `ttft_ms` is the time to the first token, `tpot_ms` the time of each token after it on
    average, `max_gap_ms` the time between any two.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    max_gap_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Hold one share of the machine: what keys belong to and fairness is measured between.

    It inherits the limits of its plan, which `plan` names; its keys stay below its `ceilings`. What
    it shares, by its `weight`, is the share of the org that `org` names, or where that is None all
    that there is. With `trace_prompts` its traces show what it sends and is answered. A change
    makes the next `version`.
    """

    id: UUID
    organisation_id: UUID
    name: str
    weight: float
    created_at: datetime
    slo: TenantSlo = TenantSlo()
    plan_id: UUID | None = None
    plan: str | None = None
    version: int = 1
    ceilings: Ceilings = NO_CEILINGS
    org_id: UUID | None = None
    org: str | None = None
    archived_at: datetime | None = None
    trace_prompts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFilter:
    """Choose tenants; None does not choose. `text` is part of a name.

    `plan` and `org` are names, of which the empty one chooses tenants without; `is_promised` those
    to whom something is promised, or nothing.
    """

    text: str | None = None
    plan: str | None = None
    org: str | None = None
    is_promised: bool | None = None


@dataclass(frozen=True, slots=True)
class TenantChoices:
    """Name the plans and the orgs that a tenant may be put into."""

    plans: Sequence[str]
    orgs: Sequence[str]


class KeyStatus(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Describe a key; the secret is not part of it. `kid` is the public id inside the token.

    `models` and `cidrs` (networks of its clients) are what it is held to; None holds it to nothing.
    With `admin_read` it opens what a viewer of its tenant may read of the admin API. While a
    rotation lets an old secret live on, `old_secret_expires_at` is its end. `operator_set` names
    the fields that an operator has set to hold it to something: only operators change those.
    """

    id: UUID
    tenant_id: UUID
    tenant: str
    kid: str
    name: str
    status: KeyStatus
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    max_tier: Tier = Tier.DEFAULT
    models: tuple[str, ...] | None = None
    cidrs: tuple[str, ...] | None = None
    allows_batch: bool = True
    admin_read: bool = False
    version: int = 1
    old_secret_expires_at: datetime | None = None
    operator_set: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDraft:
    """Say what a new key is to be; the fields mean what they do in `ApiKey`."""

    kid: str
    name: str
    secret: KeySecret
    expires_at: datetime | None = None
    max_tier: Tier = Tier.DEFAULT
    models: tuple[str, ...] | None = None
    cidrs: tuple[str, ...] | None = None
    allows_batch: bool = True
    admin_read: bool = False
    operator_set: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyRef:
    """Name a key by its id or kid, within an organisation or, with `tenant_id`, a tenant of it."""

    organisation_id: UUID
    named: UUID | str
    tenant_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """Pair a new key with its token, which is shown this once."""

    key: ApiKey
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """Say on whose behalf a request runs; it comes from the credential alone.

    `quotas` are the limits that hold for it now, the narrowest scope first, those without limits
    left out. `models` and `cidrs` are what the key is held to, `tenant_models` and `tenant_cidrs`
    all keys of its tenant: both must allow; None holds to nothing. `max_tier` is that of both.
    `secret_ends_at` is set where the request's secret is an old one that a rotation lets live on,
    in seconds since 1970. `weight` is the tenant's; `org_weight` that of its org, if it has one.
    """

    organisation_id: UUID
    tenant_id: UUID
    tenant: str
    weight: float
    key_id: UUID
    kid: str
    max_tier: Tier = Tier.DEFAULT
    slo: TenantSlo = TenantSlo()
    quotas: tuple[ScopeQuota, ...] = ()
    models: tuple[str, ...] | None = None
    cidrs: tuple[str, ...] | None = None
    allows_batch: bool = True
    admin_read: bool = False
    secret_ends_at: float | None = None
    tenant_models: tuple[str, ...] | None = None
    tenant_cidrs: tuple[str, ...] | None = None
    org_id: UUID | None = None
    org_weight: float = 1.0
    trace_prompts: bool = False


@dataclass(frozen=True, slots=True)
class KeySecret:
    """Hold what the store keeps of a token; `expires_at` ends it before its key (a rotation).

    `is_tagged`: the token shows by itself that we issued it; only what is stored has to know.
    """

    pepper_id: str
    mac: bytes = field(repr=False)
    expires_at: datetime | None = None
    is_tagged: bool = False


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Pair whom a key speaks for with what proves it; read once per authentication.

    `changes_at` is when the principal's limits change by themselves: an override ends.
    """

    principal: Principal
    secrets: tuple[KeySecret, ...]
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    changes_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FirstStart:
    """List what the first start made, to be shown once: an admin token and a key per tenant."""

    admin_token: str = field(repr=False)
    keys: tuple[IssuedKey, ...]


def is_name(text: str) -> bool:
    """Tell whether `text` may name a tenant, a key, a plan or an org.

    That is 1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first.
    """
    return _NAME.fullmatch(text) is not None
