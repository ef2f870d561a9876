"""What plans, prices, limits, tenants and keys are to be, what they are, and what lies between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from gateway.domain import ApiKey, KeySecret, Tenant
from gateway.domain.plan import Plan
from gateway.domain.price import Price, PriceDraft
from gateway.domain.quota import Quota, Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder, QuotaState

ADD, CHANGE, SAME = "+", "~", "="


@dataclass(frozen=True, slots=True)
class DesiredKey:
    """Say what a key is to be: the fields that are named, and its limits where they are."""

    name: str
    fields: Mapping[str, Any]
    expires_at: datetime | None = None
    quota: Quota | None = None


@dataclass(frozen=True, slots=True)
class DesiredTenant:
    """Say what a tenant is to be: the fields that are named, and its limits where they are."""

    name: str
    fields: Mapping[str, Any]
    quota: Quota | None = None
    keys: Sequence[DesiredKey] = ()


@dataclass(frozen=True, slots=True)
class Desired:
    """Hold all that is wanted; what is not named here is left alone.

    Prices have the fields of a `PriceDraft` that are named. `scopes` are limits of the platform
    and the organisation.
    """

    plans: Mapping[str, Quota]
    prices: Mapping[str, Mapping[str, int]]
    scopes: Mapping[ScopeKind, Quota]
    tenants: list[DesiredTenant]

    @property
    def num_entries(self) -> int:
        """Count plans, prices, scopes, tenants and keys."""
        num_keys = sum(len(tenant.keys) for tenant in self.tenants)
        return len(self.plans) + len(self.prices) + len(self.scopes) + len(self.tenants) + num_keys


@dataclass(frozen=True, slots=True)
class Present:
    """Hold what there is of what is wanted.

    `keys` are the live ones of a tenant by name; `num_keys` counts all that are live. `quotas` are
    those of scopes that exist. `others` are names of what is not wanted to be anything. `orgs` are
    ids by name, of those that tenants are wanted to belong to.
    """

    organisation_id: UUID
    organisation: str
    plans: Mapping[str, Plan]
    prices: Mapping[str, Price]
    tenants: Mapping[str, Tenant]
    keys: Mapping[tuple[str, str], Sequence[ApiKey]]
    num_keys: Mapping[UUID, int]
    quotas: Mapping[Scope, QuotaState]
    others: Sequence[str]
    orgs: Mapping[str, UUID] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanWrite:
    before: Plan | None
    after: Plan


@dataclass(frozen=True, slots=True)
class PriceWrite:
    before: Price | None
    draft: PriceDraft


@dataclass(frozen=True, slots=True)
class TenantWrite:
    before: Tenant | None
    after: Tenant


@dataclass(frozen=True, slots=True)
class KeyWrite:
    """Change a key, or make one, which has a `secret`."""

    before: ApiKey | None
    after: ApiKey
    secret: KeySecret | None = None


@dataclass(frozen=True, slots=True)
class QuotaWrite:
    """Set all limits of a scope's own; `before` is None for one that is only about to be made."""

    holder: QuotaHolder
    before: QuotaState | None
    quota: Quota
    operator_set: tuple[str, ...]


Write = PlanWrite | PriceWrite | TenantWrite | KeyWrite | QuotaWrite


@dataclass(frozen=True, slots=True)
class Detail:
    """Say what a field was and is to be."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Say what becomes of one thing, and what is to be written for it; None where it stays.

    `version` is what the thing has now.
    """

    sign: str
    subject: str
    details: Sequence[Detail] = ()
    version: int = 0
    write: Write | None = None


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Hold all changes in the order of what is wanted; `fingerprint` names them and the versions
    that they were made from."""

    changes: list[PlannedChange]
    others: Sequence[str]
    fingerprint: str

    @property
    def writes(self) -> list[Write]:
        return [one.write for one in self.changes if one.write is not None]
