"""Opening a gateway: stores and models at once, then what stands on both."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from importlib.metadata import version as package_version

from gateway import DISTRIBUTION
from gateway.app.assembly import Gateway, assemble
from gateway.app.model_loading import load_models
from gateway.services.health import Heartbeat, Lifecycle, Probes, StoreWatch
from gateway.services.inference import (
    ModelRegistry,
    ServedModel,
)
from gateway.settings import Settings
from gateway.store import open_store
from scheduler.service import SWITCH_INTERVAL_S


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings,
    probes: Probes | None = None,
    *,
    is_worker: bool = False,
    admin_url: str | None = None,
    api_url: str | None = None,
) -> AsyncIterator[Gateway]:
    """Open everything that a process serves with, and close it in the opposite order.

    A worker runs items of batches and serves nobody. `admin_url` is where this machine reaches the
    admin port, `api_url` where tenants call.

    `probes` follow the start and are attached to what it makes. A start that is cancelled, or that
    fails at the stores, leaves the thread that loads the model behind.
    Raises: `engine.errors.EngineError`, `gateway.errors.StartupFailed`, `OSError`: each one line.
    """
    version = package_version(DISTRIBUTION)
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
        loaded = await loading
        for model in loaded:
            await stack.enter_async_context(_running(model))
        watch = StoreWatch(store.keys, grace_s=settings.auth_grace_s)
        await stack.enter_async_context(watch.running())
        probes.attach(loaded, watch)
        models = ModelRegistry(loaded)
        yield await assemble(
            stack,
            settings,
            store,
            models,
            probes,
            version,
            is_worker=is_worker,
            admin_url=admin_url,
            api_url=api_url,
        )


async def _load(settings: Settings, version: str, lifecycle: Lifecycle) -> list[ServedModel]:
    """Load the models on a thread that nobody has to wait for: no load can be stopped halfway."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[list[ServedModel]] = loop.create_future()

    def hand_over(models: list[ServedModel] | None, error: BaseException | None) -> None:
        if loaded.done():
            return
        if models is not None:
            loaded.set_result(models)
        elif error is not None:
            loaded.set_exception(error)

    def load() -> None:
        models, error = None, None
        try:
            models = load_models(settings, version=version)
        except BaseException as exc:
            error = exc
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(hand_over, models, error)

    with lifecycle.starting("model"):
        threading.Thread(target=load, name="load-model", daemon=True).start()
        return await loaded


@contextlib.asynccontextmanager
async def _running(model: ServedModel) -> AsyncIterator[None]:
    """Run a model's engine thread; on leaving, wait for its last step off the event loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    model.service.start()
    try:
        yield
    finally:
        await asyncio.to_thread(model.service.stop)
