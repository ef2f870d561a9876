"""Putting the services over open stores and running models, and the two applications over them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp

from admin_ui.guards import SecurityHeaders
from admin_ui.pages import About
from admin_ui.setting_rows import setting_rows
from gateway.api.admin.config import config_route, shown_settings
from gateway.api.admin.metrics import metrics_routes
from gateway.api.admin.overload import overload_route
from gateway.api.admin.quota_usage import quota_usage_routes
from gateway.api.admin.routes import admin_routes
from gateway.api.admin.scheduler import scheduler_routes
from gateway.api.admin.top import top_route
from gateway.api.admin.usage import admin_usage_routes
from gateway.api.body import SHORT_BODY_BYTES
from gateway.api.front_page import UiAddress
from gateway.api.health import DetailedHealth, Health
from gateway.api.held_bytes import HeldBytes, held_answers
from gateway.api.public import public_app, with_errors
from gateway.app.accounting import Accounting, open_accounting
from gateway.app.admin_pages import guard_of, people_routes
from gateway.app.administration import admin_services, count_dead_items, follow_audit_head
from gateway.app.batch_work import running_batches
from gateway.app.batches import OpenBatches, open_batches
from gateway.app.observing import Observed, observing
from gateway.app.playground import open_playground
from gateway.app.signing_in import SigningIn, issuer_of, signing_in
from gateway.app.watching import Watching, open_watching
from gateway.app.web_ui import UiParts, open_ui
from gateway.credentials import Token
from gateway.services.admin import (
    LiveHistory,
    LiveView,
    PastLimits,
    SchedulerControl,
    SchedulerPolicies,
)
from gateway.services.auth import (
    AdminAuthenticator,
    Authenticator,
    AuthUpkeep,
    Failures,
    IssuedTokens,
)
from gateway.services.batches.worker import BatchWorker
from gateway.services.constraints import Constraints
from gateway.services.fair_pool import FairPool
from gateway.services.health import OverloadWatch, Phase, Probes
from gateway.services.inference import (
    IdempotencyService,
    InferenceService,
    KeyWatch,
    LeasedInference,
    ModelRegistry,
)
from gateway.services.ledger import Exports, PriceBook, UsageService
from gateway.services.local_access import new_local_token
from gateway.services.loop_share import LoopShare
from gateway.services.quotas import Entry
from gateway.services.read_rate import ReadRate
from gateway.services.replica_shares import ReplicaShares
from gateway.services.requests import RecentRequests
from gateway.services.responses import StoredResponses
from gateway.services.what_if import WhatIf
from gateway.settings import Settings
from gateway.store import FirstStart, Store
from gateway.telemetry.sink_metrics import SinkMetrics

EXPORTS_DIR: Final = "exports"


@dataclass(frozen=True, slots=True)
class Gateway:
    """Hold what a server needs of a running gateway; one that is a worker alone is not public."""

    version: str
    models: ModelRegistry
    first_start: FirstStart | None
    local_token: Token
    public: ASGIApp | None
    admin: ASGIApp
    signing_in: SigningIn
    worker: BatchWorker | None


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
    inference: LeasedInference
    loop_share: LoopShare
    observed: Observed
    watching: Watching
    recent: RecentRequests


async def assemble(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    models: ModelRegistry,
    probes: Probes,
    version: str,
    *,
    is_worker: bool = False,
    admin_url: str | None = None,
    api_url: str | None = None,
) -> Gateway:
    """Build the services, which run until `stack` is left, and the applications.

    `admin_url` is where this machine reaches the admin port, `api_url` where tenants call.

    What moves batches and files on stays with the servers: a worker runs items and nothing else.
    """
    prices = PriceBook(store.prices)
    await stack.enter_async_context(prices.running())
    books = await stack.enter_async_context(open_accounting(settings, store, prices))
    issued = IssuedTokens(store.untagged, store.secrets)
    await stack.enter_async_context(issued.running())
    auth = Authenticator(store.keys, store.secrets, issued=issued, grace_s=settings.auth_grace_s)
    await _follow_changes(stack, auth, store, books, prices)
    observed = await observing(stack, settings, store, books, models)
    overload = OverloadWatch(
        {model.name: model.service for model in models},
        on_measured=observed.process.note_load,
    )
    await stack.enter_async_context(overload.watching())
    sharing = ReplicaShares(models, store.replica_rates)
    await stack.enter_async_context(sharing.running())
    probes.watch_overload(overload)
    probes.watch_spool(lambda: books.spool.fill)
    exports = Exports(settings.data_dir / EXPORTS_DIR)
    usage = UsageService(store.usage, store.keys, store.tenants, books.writer, exports=exports)
    loop_share = LoopShare()
    recent = RecentRequests()
    watching = await open_watching(stack, settings, store, recent, version, books.metrics)
    # Last of those who are told: by then it is decided which traces are kept.
    watching.ended.add(observed.requests.tell)
    books.metrics.add(SinkMetrics(watching.traces, watching.log))
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
        inference=_inference(stack, store, books, loop_share),
        loop_share=loop_share,
        observed=observed,
        watching=watching,
        recent=recent,
    )
    local_token = new_local_token()
    organisation = await store.organisations.default()
    people = signing_in(
        store, auth, organisation.id, issuer=issuer_of(settings), grace_s=settings.auth_grace_s
    )
    await people.run(stack)
    batches = None
    if not is_worker:
        batches = await open_batches(
            stack,
            settings,
            store,
            models,
            prices,
            common.inference.pool,
            owner_of=loop_share.owner_of,
        )
    return Gateway(
        version=version,
        models=models,
        first_start=store.first_start,
        local_token=local_token,
        public=None
        if batches is None
        else await _public(stack, common, batches, version, admin_url),
        admin=await _admin(stack, common, local_token, people, version, api_url, batches),
        signing_in=people,
        worker=await _worker(stack, common) if is_worker or settings.batch_worker else None,
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
    upkeep = AuthUpkeep(
        auth, store.keys, store.auth_epoch, on_change=changes, on_ended=key_watch.end
    )
    await stack.enter_async_context(upkeep.running())


def _inference(
    stack: AsyncExitStack, store: Store, books: Accounting, loop_share: LoopShare
) -> LeasedInference:
    """Build what runs requests, and items of batches."""
    pool = FairPool(on_used=loop_share.charge, owner_of=loop_share.owner_of)
    stack.callback(pool.close)
    constraints = Constraints()
    stack.callback(constraints.close)
    entry = Entry(books.quotas, short_bytes=SHORT_BODY_BYTES)
    inference = InferenceService(
        salt_key=store.secrets.kv_salt_key, pool=pool, constraints=constraints
    )
    return LeasedInference(inference, books.quotas, entry)


async def _worker(stack: AsyncExitStack, common: _Common) -> BatchWorker:
    """Run items of batches here."""
    running = running_batches(
        common.settings,
        common.store,
        common.books,
        common.models,
        common.inference,
        common.loop_share,
        common.overload,
        common.watching.ended,
        common.observed.process.note_expired,
    )
    return await stack.enter_async_context(running)


async def _public(
    stack: AsyncExitStack,
    common: _Common,
    batches: OpenBatches,
    version: str,
    admin_url: str | None,
) -> ASGIApp:
    """Build the API that tenants reach."""
    books, owner_of = common.books, common.loop_share.owner_of
    idempotency = IdempotencyService(
        common.store.idempotency, common.store.secrets, books.keyed, books.writer.flush
    )
    await stack.enter_async_context(idempotency.running())
    return public_app(
        models=common.models,
        inference=common.inference,
        usage=common.usage,
        batches=batches.service,
        files=batches.files,
        overload=common.overload,
        auth=common.auth,
        health=Health(common.probes),
        failures=common.failures,
        version=version,
        idempotency=idempotency,
        bodies=HeldBytes(common.settings.body_memory_mib << 20, owner_of=owner_of),
        answers=held_answers(common.settings.answer_memory_mib << 20, owner_of=owner_of),
        reads=common.reads,
        loop_share=common.loop_share,
        ignores_unknown=common.settings.unknown_parameters == "ignore",
        cors_origins=common.settings.cors_origins,
        ended=common.watching.ended,
        traces=common.watching.heads,
        stored=_stored(common),
        stores_unasked=common.settings.store_responses,
        ui=UiAddress(common.settings.admin_public_url, admin_url),
    )


def _stored(common: _Common) -> StoredResponses:
    """Build what stores responses."""
    return StoredResponses(
        common.store.responses,
        common.store.secrets,
        common.inference.pool,
        max_tenant_bytes=common.settings.tenant_responses_mib << 20,
        max_tenant_rows=common.settings.tenant_responses,
    )


async def _admin(
    stack: AsyncExitStack,
    common: _Common,
    local_token: Token,
    people: SigningIn,
    version: str,
    api_url: str | None,
    batches: OpenBatches | None,
) -> ASGIApp:
    """Build the API that administrators reach; `local_token` opens it to this machine.

    A worker has no `batches`, and nobody to chat with.
    """
    store, scheduling = common.store, SchedulerControl(common.models)
    policies = SchedulerPolicies(
        store.scheduler_policies, store.organisations, scheduling, store.scheduler_epoch
    )
    # Before a request comes: it is to be scheduled as operators want it.
    await stack.enter_async_context(policies.running())
    await follow_audit_head(stack, common.settings, store, common.books.metrics)
    await count_dead_items(stack, store, common.books.metrics)
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
        store, common.auth, auth, scheduling, common.prices, common.books.quotas, people
    )
    live = LiveView(common.models, services.tenants, common.recent)
    await stack.enter_async_context(live.running())
    url, about = common.settings.admin_public_url, About(version)
    lifecycle = common.probes.lifecycle
    parts = UiParts(
        about=about,
        admin=services,
        scheduling=scheduling,
        policies=policies,
        usage=common.usage,
        quotas=common.books.quotas,
        live=live,
        parts=common.probes.ready,
        is_over=lambda: lifecycle.phase > Phase.SERVING,
        settings=setting_rows(common.settings, shown_settings(common.settings)),
        past_limits=PastLimits(store.past_requests),
        what_if=WhatIf(store.past_requests, services.tenants, list(common.models)),
        api=api_url,
        read_rpm=common.settings.read_rpm,
        batch_desk=None
        if batches is None
        else batches.desk(store, common.overload, common.loop_share),
        playground=None
        if batches is None
        else open_playground(
            common.models,
            common.inference,
            common.overload,
            store.keys,
            common.loop_share,
            common.watching.ended,
        ),
    )
    ui = await open_ui(
        stack,
        parts,
        LiveHistory(common.models, common.recent),
        guard_of(people, about, public_url=url, read_rpm=common.settings.read_rpm),
        lambda pages: people_routes(people, services.users, pages, public_url=url),
    )
    app = with_errors(
        [
            *DetailedHealth(common.probes).routes(),
            *admin_routes(services, auth, public_url=url),
            *scheduler_routes(scheduling, policies, services.tenants, auth),
            *admin_usage_routes(common.usage, auth),
            *quota_usage_routes(services.quota_settings, common.books.quotas, auth),
            *metrics_routes(common.books.metrics, auth, is_public=common.settings.metrics_public),
            overload_route(common.overload, auth),
            top_route(live, auth),
            config_route(common.settings, common.models, auth),
            ui,
        ],
        common.failures,
    )
    return SecurityHeaders(app)
