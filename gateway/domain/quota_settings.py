"""What an administrator sets about limits: whose they are, and what lies over them for a while."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

from gateway.domain.quota import Quota, Scope, ScopeQuota
from gateway.domain.window import Window


@dataclass(frozen=True, slots=True)
class QuotaHolder:
    """Name whose limits are set; `tenant_id` is set for tenants and their keys.

    `plan_id` is the plan whose limits a tenant inherits; `tenant` names whose a key is.
    """

    scope: Scope
    name: str
    organisation_id: UUID
    tenant_id: UUID | None = None
    plan_id: UUID | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaOverride:
    """Lay limits over those of a scope until `ends_at`; only operators change one of theirs."""

    quota: Quota
    ends_at: datetime
    reason: str | None = None
    is_operators: bool = False


@dataclass(frozen=True, slots=True)
class QuotaState:
    """Hold what a scope has set, what lies over it now, and what comes of both and its plan.

    Every change of either makes the next `version`; 0 is a scope that never had limits. Of a key,
    `operator_set` names the limits that operators have set: nobody else changes those.
    """

    holder: QuotaHolder
    quota: Quota
    override: QuotaOverride | None
    effective: ScopeQuota
    version: int
    operator_set: tuple[str, ...] = ()


def plain_quota(quota: Quota) -> dict[str, object]:
    """Return the limits by name, as JSON has them."""
    values = {field.name: getattr(quota, field.name) for field in fields(quota)}
    return {
        name: value.text if isinstance(value, Window) else value for name, value in values.items()
    }
