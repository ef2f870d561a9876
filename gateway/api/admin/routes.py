"""What the admin API administers: tenants, orgs, keys, plans, limits, prices, tokens, users, audit.

Each resource has a module, which says who may; the routes of the scheduler, of overload, of usage
and of the settings have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.routing import Route

from gateway.api.admin.apply import apply_routes
from gateway.api.admin.audit import audit_routes
from gateway.api.admin.batches import dead_item_routes
from gateway.api.admin.keys import key_routes
from gateway.api.admin.orgs import org_routes
from gateway.api.admin.plans import plan_routes
from gateway.api.admin.prices import price_routes
from gateway.api.admin.quotas import quota_routes
from gateway.api.admin.requests import request_routes
from gateway.api.admin.routing import AuthenticatesAdmins
from gateway.api.admin.tenants import tenant_routes
from gateway.api.admin.tokens import token_routes
from gateway.api.admin.users import user_routes
from gateway.services.admin import (
    AdminTokenService,
    ApplyService,
    AuditService,
    BatchListService,
    DeadItemService,
    KeyService,
    OrgService,
    PlanService,
    QuotaSettingsService,
    RequestRecordService,
    TenantArchive,
    TenantService,
    UserService,
)
from gateway.services.ledger import PriceService


@dataclass(frozen=True, slots=True)
class AdminServices:
    """Hold what the admin API calls."""

    tenants: TenantService
    tenant_archive: TenantArchive
    orgs: OrgService
    keys: KeyService
    plans: PlanService
    quota_settings: QuotaSettingsService
    prices: PriceService
    tokens: AdminTokenService
    audit: AuditService
    apply: ApplyService
    dead_items: DeadItemService
    batches: BatchListService
    request_records: RequestRecordService
    users: UserService


def admin_routes(
    services: AdminServices, auth: AuthenticatesAdmins, *, public_url: str | None = None
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`.

    `public_url` is where browsers reach the pages, None where nobody said.
    """
    return [
        *tenant_routes(services.tenants, services.tenant_archive, auth),
        *org_routes(services.orgs, auth),
        *key_routes(services.keys, auth),
        *plan_routes(services.plans, auth),
        *quota_routes(services.quota_settings, auth),
        *price_routes(services.prices, auth),
        *audit_routes(services.audit, auth),
        *token_routes(services.tokens, auth),
        *user_routes(services.users, auth, public_url),
        *apply_routes(services.apply, auth),
        *dead_item_routes(services.dead_items, auth),
        *request_routes(services.request_records, auth),
    ]
