"""The UI over a real store, with something going on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import ASGIApp

from gateway.domain.admin import AdminRole
from gateway.settings import Settings
from gateway.store import Store
from tests.admin_ui.guard import as_admin
from tests.admin_ui.world import World, open_world
from tests.gateway.conftest import (
    database_url,
    databases,
    own_store,
    redis_url,
    servers,
    settings,
    shared_store,
    started,
    store,
)

__all__ = [
    "database_url",
    "databases",
    "own_store",
    "redis_url",
    "servers",
    "settings",
    "shared_store",
    "started",
    "store",
]


@pytest.fixture
async def world(settings: Settings, store: Store) -> AsyncIterator[World]:
    """Open the UI for an owner."""
    guard = as_admin(organisation_id=(await store.organisations.default()).id)
    async with open_world(settings, store, guard) as opened:
        yield opened


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A browser of an owner."""
    async with browser(world.app) as client:
        yield client


@pytest.fixture
async def viewer(settings: Settings, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """A browser of a viewer, of the same store."""
    guard = as_admin(AdminRole.VIEWER, organisation_id=(await store.organisations.default()).id)
    async with open_world(settings, store, guard) as world, browser(world.app) as client:
        yield client


def browser(app: ASGIApp) -> httpx.AsyncClient:
    """Talk to the UI as a browser without scripts does."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://admin")
