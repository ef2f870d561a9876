"""Putting the services over open stores and running models, and the two applications over them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp

from gateway.api.admin.config import config_route
from gateway.api.admin.metrics import metrics_route
from gateway.api.admin.overload import overload_route
from gateway.api.admin.quota_usage import quota_usage_routes
from gateway.api.admin.routes import admin_routes
from gateway.api.admin.scheduler import scheduler_routes
from gateway.api.admin.usage import admin_usage_routes
from gateway.api.body import SHORT_BODY_BYTES
from gateway.api.health import DetailedHealth, Health
from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.api.public import public_app, with_errors
from gateway.app.accounting import Accounting, open_accounting
from gateway.app.administration import admin_services, follow_audit_head
from gateway.credentials import Token
from gateway.services.admin import SchedulerControl
from gateway.services.auth import (
    AdminAuthenticator,
    Authenticator,
    AuthUpkeep,
    Failures,
    IssuedTokens,
    new_local_token,
)
from gateway.services.fair_pool import FairPool
from gateway.services.health import OverloadWatch, Probes
from gateway.services.inference import (
    IdempotencyService,
    InferenceService,
    KeyWatch,
    LeasedInference,
    ModelRegistry,
)
from gateway.services.ledger import Exports, PriceBook, UsageService
from gateway.services.loop_share import LoopShare
from gateway.services.quotas import Entry
from gateway.services.read_rate import ReadRate
from gateway.settings import Settings
from gateway.store import FirstStart, Store

EXPORTS_DIR: Final = "exports"


@dataclass(frozen=True, slots=True)
class Gateway:
    """Hold what a server needs of a running gateway."""

    version: str
    models: ModelRegistry
    first_start: FirstStart | None
    local_token: Token
    public: ASGIApp
    admin: ASGIApp


@dataclass(frozen=True, slots=True)
class _Common:
    """Hold what both applications stand on."""

    settings: Settings
    store: Store
    models: ModelRegistry
    probes: Probes
    prices: PriceBook
    books: Accounting
    auth: Authenticator
    issued: IssuedTokens
    failures: Failures
    overload: OverloadWatch
    usage: UsageService
    reads: ReadRate


async def assemble(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    models: ModelRegistry,
    probes: Probes,
    version: str,
) -> Gateway:
    """Build the services, which run until `stack` is left, and the applications."""
    prices = PriceBook(store.prices)
    await stack.enter_async_context(prices.running())
    books = await stack.enter_async_context(open_accounting(settings, store, prices))
    issued = IssuedTokens(store.untagged, store.secrets)
    await stack.enter_async_context(issued.running())
    auth = Authenticator(store.keys, store.secrets, issued=issued, grace_s=settings.auth_grace_s)
    await _follow_changes(stack, auth, store, books, prices)
    overload = OverloadWatch([model.service for model in models])
    await stack.enter_async_context(overload.watching())
    probes.watch_overload(overload)
    probes.watch_spool(lambda: books.spool.fill)
    exports = Exports(settings.data_dir / EXPORTS_DIR)
    usage = UsageService(store.usage, store.keys, store.tenants, books.writer, exports=exports)
    common = _Common(
        settings=settings,
        store=store,
        models=models,
        probes=probes,
        prices=prices,
        books=books,
        auth=auth,
        issued=issued,
        failures=Failures(),
        overload=overload,
        usage=usage,
        reads=ReadRate(settings.read_rpm),
    )
    local_token = new_local_token()
    return Gateway(
        version=version,
        models=models,
        first_start=store.first_start,
        local_token=local_token,
        public=await _public(stack, common, version),
        admin=await _admin(stack, common, local_token),
    )


async def _follow_changes(
    stack: AsyncExitStack, auth: Authenticator, store: Store, books: Accounting, prices: PriceBook
) -> None:
    """Have what is known of keys follow their changes."""
    books.metrics.auth_degraded.set_function(lambda: auth.degraded)
    key_watch = KeyWatch(auth, books.quotas)
    await stack.enter_async_context(key_watch.running())
    # What runs on a dead key first: the other waits for the database.
    changes = [key_watch.keys_changed, prices.refresh]
    upkeep = AuthUpkeep(auth, store.keys, store.auth_epoch, on_change=changes)
    await stack.enter_async_context(upkeep.running())


async def _public(stack: AsyncExitStack, common: _Common, version: str) -> ASGIApp:
    """Build the API that tenants reach."""
    loop_share = LoopShare()
    pool = FairPool(on_used=loop_share.charge)
    stack.callback(pool.close)
    secrets, books = common.store.secrets, common.books
    inference = InferenceService(salt_key=secrets.kv_salt_key, pool=pool)
    idempotency = IdempotencyService(
        common.store.idempotency, secrets, books.keyed, books.writer.flush
    )
    await stack.enter_async_context(idempotency.running())
    return public_app(
        models=common.models,
        inference=LeasedInference(
            inference, books.quotas, Entry(books.quotas, short_bytes=SHORT_BODY_BYTES)
        ),
        usage=common.usage,
        overload=common.overload,
        auth=common.auth,
        health=Health(common.probes),
        failures=common.failures,
        version=version,
        idempotency=idempotency,
        bodies=HeldBytes(common.settings.body_memory_mib << 20),
        answers=held_answers(common.settings.answer_memory_mib << 20),
        reads=common.reads,
        loop_share=loop_share,
        ignores_unknown=common.settings.unknown_parameters == "ignore",
        cors_origins=common.settings.cors_origins,
    )


async def _admin(stack: AsyncExitStack, common: _Common, local_token: Token) -> ASGIApp:
    """Build the API that administrators reach; `local_token` opens it to this machine."""
    store, scheduling = common.store, SchedulerControl(common.models)
    await follow_audit_head(stack, common.settings, store, common.books.metrics)
    organisation = await store.organisations.default()
    auth = AdminAuthenticator(
        store.admin_tokens,
        store.secrets,
        organisation.id,
        store.admin_epoch,
        local_token=local_token,
        keys=common.auth,
        issued=common.issued,
        grace_s=common.settings.auth_grace_s,
        reads=common.reads,
    )
    await stack.enter_async_context(auth.running())
    services = admin_services(
        store, common.auth, auth, scheduling, common.prices, common.books.quotas
    )
    return with_errors(
        [
            *DetailedHealth(common.probes).routes(),
            *admin_routes(services, auth),
            *scheduler_routes(scheduling, services.tenants, services.audit, auth),
            *admin_usage_routes(common.usage, auth),
            *quota_usage_routes(services.quota_settings, common.books.quotas, auth),
            metrics_route(common.books.metrics, auth),
            overload_route(common.overload, auth),
            config_route(common.settings, common.models, auth),
        ],
        common.failures,
    )
