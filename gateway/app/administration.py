"""Putting administration together: its services over the stores, for the server and its tests."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Protocol

from gateway.api.admin.routes import AdminServices
from gateway.app.signing_in import SigningIn
from gateway.services.admin import (
    AdminTokenService,
    ApplyService,
    AuditService,
    BatchListService,
    DeadItemService,
    DeadItemWatch,
    HeadPost,
    HeadWatch,
    HoldsOrgs,
    HoldsTenants,
    KeyService,
    OrgService,
    PlanService,
    QuotaSettingsService,
    RequestRecordService,
    TenantArchive,
    TenantService,
    UserService,
)
from gateway.services.auth import AdminAuthenticator, Authenticator
from gateway.services.ledger import PriceBook, PriceService
from gateway.services.quotas import QuotaService, Webhook
from gateway.settings import Settings
from gateway.store import Store
from gateway.telemetry.metrics import Metrics


class Running(HoldsTenants, HoldsOrgs, Protocol):
    """Hold requests that wait or run, and learn what weighs how much."""


async def follow_audit_head(
    stack: AsyncExitStack, settings: Settings, store: Store, metrics: Metrics
) -> None:
    """Keep the audit log's head while `stack` is open, and post it where that is wanted."""
    organisation = await store.organisations.default()
    watch = HeadWatch(
        store.audit,
        organisation.id,
        store.kept_heads,
        on_lost=lambda is_lost: metrics.audit_lost.set(int(is_lost)),
    )
    await stack.enter_async_context(watch.running())
    if settings.audit_webhook_url is not None and settings.webhook_secret is not None:
        webhook = Webhook(
            settings.audit_webhook_url,
            settings.webhook_secret.get_secret_value(),
            allow_private=settings.webhook_allow_private,
        )
        post = HeadPost(
            store.audit,
            organisation.id,
            webhook,
            interval_s=settings.audit_webhook_s,
            on_failed=metrics.audit_post_failures.inc,
        )
        await stack.enter_async_context(post.running())


async def count_dead_items(stack: AsyncExitStack, store: Store, metrics: Metrics) -> None:
    """Count while `stack` is open what waits for an operator."""
    watch = DeadItemWatch(store.dead_items, on_counted=metrics.batch_dead_items.set)
    await stack.enter_async_context(watch.running())


def admin_services(
    store: Store,
    auth: Authenticator,
    admin_auth: AdminAuthenticator,
    running: Running,
    prices: PriceBook,
    quotas: QuotaService,
    signing_in: SigningIn,
) -> AdminServices:
    """Build the services; changes hold at once for what this process keeps in the last five."""
    epoch, organisations = store.auth_epoch, store.organisations
    tenants = TenantService(store.tenants, organisations, auth, epoch, running)
    keys = KeyService(store.keys, tenants, store.secrets, auth, epoch)
    plans = PlanService(store.plans, organisations, auth, epoch)
    return AdminServices(
        tenants=tenants,
        tenant_archive=TenantArchive(
            store.tenant_archive, organisations, auth, epoch, admin_auth, store.admin_epoch
        ),
        orgs=OrgService(store.orgs, organisations, auth, epoch, running),
        keys=keys,
        plans=plans,
        quota_settings=QuotaSettingsService(
            store.quota_settings, tenants, keys, plans, auth, epoch, load=quotas.limits_changed
        ),
        prices=PriceService(store.prices, organisations, prices, epoch),
        tokens=AdminTokenService(
            store.admin_tokens, tenants, store.secrets, admin_auth, store.admin_epoch
        ),
        audit=AuditService(store.audit, tenants, store.kept_heads),
        apply=ApplyService(
            store.settings,
            tenants,
            store.secrets,
            auth,
            epoch,
            running,
            prices,
            load=quotas.limits_changed,
        ),
        dead_items=DeadItemService(store.dead_items, tenants),
        batches=BatchListService(store.batches, tenants),
        request_records=RequestRecordService(store.request_records, tenants),
        users=UserService(store.users, tenants, signing_in.sign_in, signing_in.sessions),
    )
