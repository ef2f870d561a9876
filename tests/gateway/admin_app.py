"""The admin API over a real store and a scheduler of the test's own, in this process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.api.admin.config import config_route
from gateway.api.admin.routes import AdminServices, admin_routes
from gateway.api.admin.scheduler import scheduler_routes
from gateway.api.admin.top import top_route
from gateway.api.admin.usage import admin_usage_routes
from gateway.api.public import with_errors
from gateway.app.administration import admin_services
from gateway.app.signing_in import signing_in
from gateway.credentials import Token
from gateway.domain import Org, Tenant
from gateway.domain.admin import Actor
from gateway.ports import AdminTokenStore, AuthEpoch, Clock
from gateway.services.admin.live_view import LiveView
from gateway.services.admin.scheduler_control import SchedulerControl
from gateway.services.admin.scheduler_policies import SchedulerPolicies
from gateway.services.auth.admin_authenticator import AdminAuthenticator
from gateway.services.auth.authenticator import Authenticator
from gateway.services.auth.upkeep import AuthUpkeep
from gateway.services.inference import ModelRegistry
from gateway.services.ledger.prices import PriceBook
from gateway.services.ledger.usage import UsageService
from gateway.services.requests.recent import RecentRequests
from gateway.settings import Settings
from gateway.store import Store
from tests.fake_quotas import open_quotas
from tests.gateway.fake_scheduling import FakeModel, FakeService

ACTOR = Actor("ann", "owner", "127.0.0.1", "r1")


class Running:
    """Remember what a scheduler would be told."""

    def __init__(self) -> None:
        self.told: list[Tenant] = []
        self.told_of_orgs: list[Org] = []
        self.least_ms = 0.0

    def set_tenant(self, tenant: Tenant) -> None:
        self.told.append(tenant)

    def set_org(self, org: Org) -> None:
        self.told_of_orgs.append(org)

    def least_pace_ms(self) -> float:
        return self.least_ms


class NothingToWrite:
    """Stand for the writer of a ledger that is up to date."""

    async def flush(self, timeout_s: float) -> bool:
        return True


@dataclass
class Process:
    """Hold the services of one process over a shared store."""

    services: AdminServices
    auth: Authenticator
    admin_auth: AdminAuthenticator
    prices: PriceBook
    upkeep: AuthUpkeep
    running: Running


async def new_process(
    store: Store,
    *,
    tokens: AdminTokenStore | None = None,
    epoch: AuthEpoch | None = None,
    clock: Clock = time,
) -> Process:
    """Build the services of one more process; it finds admin tokens in `tokens`, and of their
    revocations in `epoch`.
    """
    auth, prices, running = (
        Authenticator(store.keys, store.secrets),
        PriceBook(store.prices),
        Running(),
    )
    admin_auth = AdminAuthenticator(
        tokens or store.admin_tokens,
        store.secrets,
        (await store.organisations.default()).id,
        epoch or store.admin_epoch,
        keys=auth,
        clock=clock,
        grace_s=60,
    )
    people = signing_in(store, auth, (await store.organisations.default()).id)
    return Process(
        services=admin_services(store, auth, admin_auth, running, prices, open_quotas(), people),
        auth=auth,
        admin_auth=admin_auth,
        prices=prices,
        upkeep=AuthUpkeep(auth, store.keys, store.auth_epoch, on_change=[prices.refresh]),
        running=running,
    )


async def admin_app(
    store: Store, *, model: FakeModel | None = None, local_token: Token | None = None
) -> ASGIApp:
    """Assemble the admin API, over a scheduler that computes nothing."""
    return with_errors(await declared_routes(store, model=model, local_token=local_token))


async def declared_routes(
    store: Store, *, model: FakeModel | None = None, local_token: Token | None = None
) -> list[Route]:
    """Declare the routes of `admin_app`."""
    models = [model or FakeModel("sim", FakeService())]
    control = SchedulerControl(models)
    policies = SchedulerPolicies(
        store.scheduler_policies, store.organisations, control, store.scheduler_epoch
    )
    await policies.follow()
    auth, prices = Authenticator(store.keys, store.secrets), PriceBook(store.prices)
    organisation = await store.organisations.default()
    admin_auth = AdminAuthenticator(
        store.admin_tokens,
        store.secrets,
        organisation.id,
        store.admin_epoch,
        local_token=local_token,
        keys=auth,
    )
    people = signing_in(store, auth, organisation.id)
    services = admin_services(store, auth, admin_auth, control, prices, open_quotas(), people)
    usage = UsageService(store.usage, store.keys, store.tenants, NothingToWrite())
    return [
        *admin_routes(services, admin_auth),
        *admin_usage_routes(usage, admin_auth),
        *scheduler_routes(control, policies, services.tenants, admin_auth),
        config_route(Settings(), ModelRegistry([]), admin_auth),
        top_route(LiveView(models, services.tenants, RecentRequests()), admin_auth),
    ]


@asynccontextmanager
async def admin_client(app: ASGIApp, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API with a token, or as a stranger."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://admin", headers=headers
    ) as client:
        yield client
