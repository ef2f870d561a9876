"""Putting administration together: its services over the stores, for the server and its tests."""

from __future__ import annotations

from gateway.api.admin.routes import AdminServices
from gateway.services.admin import (
    AdminTokenService,
    AuditService,
    HoldsTenants,
    KeyService,
    PlanService,
    QuotaSettingsService,
    TenantService,
)
from gateway.services.auth import AdminAuthenticator, Authenticator
from gateway.services.ledger import PriceBook, PriceService
from gateway.services.quotas import QuotaService
from gateway.store import Store


def admin_services(
    store: Store,
    auth: Authenticator,
    admin_auth: AdminAuthenticator,
    running: HoldsTenants,
    prices: PriceBook,
    quotas: QuotaService,
) -> AdminServices:
    """Build the services; changes hold at once for what this process keeps in the last five."""
    epoch, organisations = store.auth_epoch, store.organisations
    tenants = TenantService(store.tenants, organisations, auth, epoch, running)
    keys = KeyService(store.keys, tenants, store.secrets, auth, epoch)
    plans = PlanService(store.plans, organisations, auth, epoch)
    return AdminServices(
        tenants=tenants,
        keys=keys,
        plans=plans,
        quota_settings=QuotaSettingsService(
            store.quota_settings, tenants, keys, plans, auth, epoch, load=quotas.limits_changed
        ),
        prices=PriceService(store.prices, organisations, prices, epoch),
        tokens=AdminTokenService(
            store.admin_tokens, tenants, store.secrets, admin_auth, store.admin_epoch
        ),
        audit=AuditService(store.audit, tenants),
    )
