"""The composition root: opens stores and models, builds the services and the applications."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version as package_version
from typing import Final

from starlette.types import ASGIApp

from gateway.accounting import open_accounting
from gateway.administration import admin_services
from gateway.api.admin_config import config_route
from gateway.api.admin_metrics import metrics_route
from gateway.api.admin_overload import overload_route
from gateway.api.admin_quota_usage import quota_usage_routes
from gateway.api.admin_routes import admin_routes
from gateway.api.admin_scheduler import scheduler_routes
from gateway.api.admin_usage import admin_usage_routes
from gateway.api.body import SHORT_BODY_BYTES
from gateway.api.health import DetailedHealth, Health
from gateway.api.public import public_app, with_errors
from gateway.credentials import Token
from gateway.model_loading import load_model
from gateway.services.admin_auth import AdminAuthenticator
from gateway.services.auth import Authenticator
from gateway.services.auth_upkeep import AuthUpkeep
from gateway.services.fair_pool import FairPool
from gateway.services.heartbeat import Heartbeat
from gateway.services.idempotency import IdempotencyService
from gateway.services.inference import InferenceService
from gateway.services.key_watch import KeyWatch
from gateway.services.leased import LeasedInference
from gateway.services.lifecycle import Lifecycle, Phase
from gateway.services.local_access import new_local_token
from gateway.services.models import ModelRegistry, ServedModel
from gateway.services.overload_watch import OverloadWatch
from gateway.services.prices import PriceBook
from gateway.services.probes import Probes
from gateway.services.quotas.entry import Entry
from gateway.services.scheduler_control import SchedulerControl
from gateway.services.store_watch import StoreWatch
from gateway.services.usage import UsageService
from gateway.settings import Settings
from gateway.store import FirstStart, Store, open_store

# The engine's thread gives up the interpreter at every operator and must get it back soon: at
# Python's default of 5 ms, a busy event loop stretches a step of 100 operators to half a second.
SWITCH_INTERVAL_S: Final = 0.0005


# How the thread that loads a model is called; it may outlive a start that was given up.
LOADER_NAME: Final = "load-model"


@dataclass(frozen=True, slots=True)
class Gateway:
    """Hold what a server needs of a running gateway."""

    version: str
    models: ModelRegistry
    first_start: FirstStart | None
    local_token: Token
    public: ASGIApp
    admin: ASGIApp


@contextlib.asynccontextmanager
async def open_gateway(settings: Settings, probes: Probes | None = None) -> AsyncIterator[Gateway]:
    """Open everything that a process serves with, and close it in the opposite order.

    `probes` follow the start and are attached to what it makes. A start that is cancelled, or that
    fails at the stores, leaves the thread that loads the model behind.
    Raises: `engine.errors.EngineError`, `gateway.errors.StartupFailed`, `OSError`: each one line.
    """
    version = package_version("sluice")
    probes = probes or Probes(Lifecycle(), Heartbeat())
    lifecycle = probes.lifecycle
    async with contextlib.AsyncExitStack() as stack:
        # Loading weights and starting the stores each take a second and do not need each other.
        loading = asyncio.create_task(_load(settings, version, lifecycle))
        stack.callback(loading.cancel)
        # Retrieved here too: where the store fails first, nobody else asks.
        loading.add_done_callback(lambda done: done.cancelled() or done.exception())
        with contextlib.ExitStack() as starting:
            starting.enter_context(lifecycle.starting("store"))

            async def model_loaded() -> None:
                # What is left to wait for is the model alone.
                starting.close()
                await loading

            opening = open_store(settings, before_first_start=model_loaded)
            store = await stack.enter_async_context(opening)
        model = await loading
        await stack.enter_async_context(_running(model))
        watch = StoreWatch(store.keys, grace_s=settings.auth_grace_s)
        await stack.enter_async_context(watch.running())
        probes.attach([model], watch)
        gateway = await _assemble(stack, settings, store, ModelRegistry([model]), probes, version)
        lifecycle.advance(Phase.SERVING)
        yield gateway


async def _load(settings: Settings, version: str, lifecycle: Lifecycle) -> ServedModel:
    """Load the model on a thread that nobody has to wait for: no load can be stopped halfway."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[ServedModel] = loop.create_future()

    def hand_over(model: ServedModel | None, error: BaseException | None) -> None:
        if loaded.done():
            return
        if model is not None:
            loaded.set_result(model)
        elif error is not None:
            loaded.set_exception(error)

    def load() -> None:
        model, error = None, None
        try:
            model = load_model(settings, version=version)
        except BaseException as exc:
            error = exc
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(hand_over, model, error)

    with lifecycle.starting("model"):
        threading.Thread(target=load, name=LOADER_NAME, daemon=True).start()
        return await loaded


async def _assemble(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    store: Store,
    models: ModelRegistry,
    probes: Probes,
    version: str,
) -> Gateway:
    """Build the services over open stores and running models."""
    local_token = new_local_token()
    auth = Authenticator(store.keys, store.secrets, grace_s=settings.auth_grace_s)
    prices = PriceBook(store.prices)
    await stack.enter_async_context(prices.running())
    books = await stack.enter_async_context(open_accounting(settings, store, prices))
    books.metrics.auth_degraded.set_function(lambda: auth.degraded)
    key_watch = KeyWatch(auth, books.quotas)
    await stack.enter_async_context(key_watch.running())
    # What runs on a dead key first: the other waits for the database.
    changes = [key_watch.keys_changed, prices.refresh]
    upkeep = AuthUpkeep(auth, store.keys, store.auth_epoch, on_change=changes)
    await stack.enter_async_context(upkeep.running())
    usage = UsageService(store.usage, store.keys, store.tenants, books.writer)
    scheduling = SchedulerControl(models)
    organisation = await store.organisations.default()
    admin_auth = AdminAuthenticator(
        store.admin_tokens,
        store.secrets,
        organisation.id,
        store.admin_epoch,
        local_token=local_token,
        keys=auth,
        grace_s=settings.auth_grace_s,
    )
    services = admin_services(store, auth, admin_auth, scheduling, prices)
    pool = FairPool()
    stack.callback(pool.close)
    inference = InferenceService(salt_key=store.secrets.kv_salt_key, pool=pool)
    idempotency = IdempotencyService(store.idempotency, store.secrets)
    await stack.enter_async_context(idempotency.running())
    overload = OverloadWatch([model.service for model in models])
    await stack.enter_async_context(overload.watching())
    probes.watch_overload(overload)
    probes.watch_spool(lambda: books.spool.fill)
    return Gateway(
        version=version,
        models=models,
        first_start=store.first_start,
        local_token=local_token,
        public=public_app(
            models=models,
            inference=LeasedInference(
                inference, books.quotas, Entry(books.quotas, short_bytes=SHORT_BODY_BYTES)
            ),
            usage=usage,
            overload=overload,
            auth=auth,
            health=Health(probes),
            version=version,
            idempotency=idempotency,
        ),
        admin=with_errors(
            [
                *DetailedHealth(probes).routes(),
                *admin_routes(services, admin_auth),
                *scheduler_routes(scheduling, services.tenants, services.audit, admin_auth),
                *admin_usage_routes(usage, admin_auth),
                *quota_usage_routes(services.quota_settings, books.quotas, admin_auth),
                metrics_route(books.metrics, admin_auth),
                overload_route(overload, admin_auth),
                config_route(settings, admin_auth),
            ]
        ),
    )


@contextlib.asynccontextmanager
async def _running(model: ServedModel) -> AsyncIterator[None]:
    """Run a model's engine thread; on leaving, wait for its last step off the event loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    model.service.start()
    try:
        yield
    finally:
        await asyncio.to_thread(model.service.stop)
