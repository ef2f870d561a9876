"""The pages over a real store, and browsers that sign in to them as people do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx
from starlette.routing import Route
from starlette.types import ASGIApp

from admin_ui.app import UiRoute, ui_app
from admin_ui.assets import Assets
from admin_ui.guards import SecurityHeaders
from admin_ui.pages import About
from admin_ui.pages import Pages as Renders
from gateway.api.public import with_errors
from gateway.app.admin_pages import guard_of, people_routes
from gateway.app.administration import admin_services
from gateway.app.signing_in import SigningIn, signing_in
from gateway.domain.admin import SYSTEM, Admin, AdminRole
from gateway.domain.sign_in import Caller
from gateway.services.admin import KeyService, UserService
from gateway.services.auth import AdminAuthenticator, Authenticator
from gateway.services.ledger import PriceBook
from gateway.services.sign_in import Issuer, Passwords
from gateway.store import Store
from tests.fake_quotas import open_quotas
from tests.gateway.admin_app import Running

Screens = Callable[[Renders], Sequence[Route]]
HOST = "127.0.0.1:8001"
PASSWORD = "correct horse battery"
CALLER = Caller("192.0.2.9", "A test", "r1")


@dataclass
class Pages:
    """Hold one process's pages and what they stand on."""

    app: ASGIApp
    people: SigningIn
    users: UserService
    keys: KeyService
    owner: Admin

    async def add(
        self, name: str, role: AdminRole = AdminRole.OWNER, *, tenant: str | None = None
    ) -> None:
        """Make a user with the password of the tests."""
        _, link = await self.users.create(self.owner, SYSTEM, name=name, role=role, tenant=tenant)
        record = await self.people.sign_in.with_link(link, "", PASSWORD, CALLER)
        await self.people.sessions.end(SYSTEM, record.session.id)


async def open_pages(
    store: Store,
    *,
    public_url: str | None = None,
    screens: Screens = lambda pages: (),
    issuer: Issuer | None = None,
    read_rpm: int = 600,
) -> Pages:
    """Build the pages of one process; several over one store are several gateways."""
    organisation = await store.organisations.default()
    auth = Authenticator(store.keys, store.secrets)
    # The work of a real hash is not what most tests are about.
    passwords = Passwords(memory_kib=64, rest_ratio=0)
    people = signing_in(store, auth, organisation.id, passwords, issuer=issuer)
    admin_auth = AdminAuthenticator(
        store.admin_tokens, store.secrets, organisation.id, store.admin_epoch
    )
    services = admin_services(
        store, auth, admin_auth, Running(), PriceBook(store.prices), open_quotas(), people
    )
    about, assets = About("test"), Assets()
    renders = Renders(about, assets)
    routes = [
        *assets.routes(),
        *people_routes(people, services.users, renders, public_url=public_url),
        *screens(renders),
    ]
    guard = guard_of(people, about, public_url=public_url, read_rpm=read_rpm)
    route = UiRoute(guard(ui_app(routes, renders)))
    owner = Admin("test", AdminRole.OWNER, organisation.id)
    app = SecurityHeaders(with_errors([route]))
    return Pages(app, people, services.users, services.keys, owner)


@asynccontextmanager
async def browser(
    app: ASGIApp, *, host: str = HOST, scheme: str = "http", address: str = "192.0.2.7"
) -> AsyncIterator[httpx.AsyncClient]:
    """Open a browser: it keeps cookies, and says of each request where it comes from."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 4000))
    async with httpx.AsyncClient(
        transport=transport,
        base_url=f"{scheme}://{host}",
        headers={"sec-fetch-site": "same-origin", "user-agent": "A browser"},
    ) as client:
        yield client


async def sign_in(
    client: httpx.AsyncClient, name: str, password: str = PASSWORD, **fields: str
) -> httpx.Response:
    """Send the form of the login page."""
    form = {"name": name, "password": password, **fields}
    return await client.post("/admin/login", data=form)


async def form_token(client: httpx.AsyncClient) -> str:
    """Read the token of a signed-in browser's forms."""
    page = await client.get("/admin/account")
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def link_in(url: str) -> str:
    """Return the link's secret in an address."""
    return parse_qs(urlsplit(url).query)["link"][0]
