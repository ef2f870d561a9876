"""What the admin API administers: tenants, keys, plans, limits, prices, admin tokens, audit log.

Each resource has a module, which says who may; the routes of the scheduler, of overload, of usage
and of the settings have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.routing import Route

from gateway.api.admin import AuthenticatesAdmins
from gateway.api.admin_audit import audit_routes
from gateway.api.admin_keys import key_routes
from gateway.api.admin_plans import plan_routes
from gateway.api.admin_prices import price_routes
from gateway.api.admin_quotas import quota_routes
from gateway.api.admin_tenants import tenant_routes
from gateway.api.admin_tokens import token_routes
from gateway.services.admin_tokens import AdminTokenService
from gateway.services.audit import AuditService
from gateway.services.keys import KeyService
from gateway.services.plans import PlanService
from gateway.services.prices import PriceService
from gateway.services.quota_settings import QuotaSettingsService
from gateway.services.tenants import TenantService


@dataclass(frozen=True, slots=True)
class AdminServices:
    """Hold what the admin API calls."""

    tenants: TenantService
    keys: KeyService
    plans: PlanService
    quota_settings: QuotaSettingsService
    prices: PriceService
    tokens: AdminTokenService
    audit: AuditService


def admin_routes(services: AdminServices, auth: AuthenticatesAdmins) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    return [
        *tenant_routes(services.tenants, auth),
        *key_routes(services.keys, auth),
        *plan_routes(services.plans, auth),
        *quota_routes(services.quota_settings, auth),
        *price_routes(services.prices, auth),
        *audit_routes(services.audit, auth),
        *token_routes(services.tokens, auth),
    ]
