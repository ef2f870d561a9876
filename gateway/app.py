"""The composition root: opens stores and models, builds the services and the applications."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from typing import Final

from starlette.types import ASGIApp

from gateway.api.admin import admin_routes
from gateway.api.admin_scheduler import scheduler_routes
from gateway.api.public import public_app, with_errors
from gateway.credentials import Token
from gateway.model_loading import load_model
from gateway.services.auth import AdminAuthenticator, Authenticator
from gateway.services.auth_upkeep import AuthUpkeep
from gateway.services.inference import InferenceService
from gateway.services.keys import KeyService
from gateway.services.local_access import new_local_token
from gateway.services.models import ModelRegistry, ServedModel
from gateway.services.scheduler_control import SchedulerControl
from gateway.services.tenants import TenantService
from gateway.settings import Settings
from gateway.store import FirstStart, Store, open_store

# The engine's thread gives up the interpreter at every operator and must get it back soon: at
# Python's default of 5 ms, a busy event loop stretches a step of 100 operators to half a second.
SWITCH_INTERVAL_S: Final = 0.0005


@dataclass(slots=True)
class Gateway:
    """Hold what a server needs of a running gateway. Set `draining` to withdraw readiness."""

    version: str
    models: ModelRegistry
    first_start: FirstStart | None
    local_token: Token
    public: ASGIApp = field(init=False)
    admin: ASGIApp = field(init=False)
    draining: bool = False


@contextlib.asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """Open everything that a process serves with, and close it in the opposite order.

    Raises: `engine.errors.EngineError`, `gateway.errors.StartupFailed`, `OSError`: each one line.
    """
    version = package_version("sluice")
    async with contextlib.AsyncExitStack() as stack:
        # Loading weights and starting the stores each take a second and do not need each other.
        loading = asyncio.create_task(asyncio.to_thread(load_model, settings, version=version))
        try:
            store = await stack.enter_async_context(open_store(settings))
        except BaseException:
            # A thread cannot be stopped; its own failure, if any, must not hide this one.
            await asyncio.gather(loading, return_exceptions=True)
            raise
        model = await loading
        await stack.enter_async_context(_running(model))
        yield await _assemble(stack, store, ModelRegistry([model]), version)


async def _assemble(
    stack: contextlib.AsyncExitStack, store: Store, models: ModelRegistry, version: str
) -> Gateway:
    """Build the services over open stores and running models."""
    local_token = new_local_token()
    auth = Authenticator(store.keys, store.secrets)
    upkeep = AuthUpkeep(auth, store.keys, store.auth_epoch)
    await stack.enter_async_context(upkeep.running())
    scheduling = SchedulerControl(models)
    tenants = TenantService(store.tenants, store.organisations, auth, store.auth_epoch, scheduling)
    keys = KeyService(store.keys, tenants, store.secrets, auth, store.auth_epoch)
    admin_auth = AdminAuthenticator(store.admin_tokens, store.secrets, local_token)
    inference = InferenceService(salt_key=store.secrets.kv_salt_key)
    stack.callback(inference.close)
    gateway = Gateway(version, models, store.first_start, local_token)
    gateway.public = public_app(
        models=models,
        inference=inference,
        auth=auth,
        draining=lambda: gateway.draining,
        version=version,
    )
    gateway.admin = with_errors(
        [
            *admin_routes(tenants, keys, admin_auth),
            *scheduler_routes(scheduling, tenants, admin_auth),
        ]
    )
    return gateway


@contextlib.asynccontextmanager
async def _running(model: ServedModel) -> AsyncIterator[None]:
    """Run a model's engine thread; on leaving, wait for its last step off the event loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    model.service.start()
    try:
        yield
    finally:
        await asyncio.to_thread(model.service.stop)
