"""Every screen, over a full store: it answers, within its bounds, to whom it is for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.domain.admin import AdminRole
from gateway.domain.page import PageRequest
from gateway.settings import Settings
from gateway.store import Store, open_store
from tests.admin_ui.guard import as_admin
from tests.admin_ui.screens import SCREENS
from tests.admin_ui.world import World, fill, open_world
from tests.gateway.conftest import Databases, owner_of

pytestmark = pytest.mark.anyio

_MAX_BYTES = 100_000
TENANT_FORMS = ("settings", "settings/preview", "archive", "limits", "limits/preview", "override",
                "override/preview", "override/clear")  # fmt: skip
PLATFORM_FORMS = ("tenants/new", "plans/new", "plans/x", "plans/x/remove", "prices",
                  "batches/requeue", "scheduler/change", "scheduler/what-if")  # fmt: skip


@pytest.fixture(scope="module")
async def full(
    databases: Databases, servers: object, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[World, Store, Settings]]:
    """Fill a store once for all tests of this module, which change nothing."""
    with databases.fresh("migrated") as url:
        settings = Settings(
            data_dir=tmp_path_factory.mktemp("full"),
            database_url=url,
            database_owner_url=owner_of(url),
            redis_url=servers.redis_url(),  # type: ignore[attr-defined]
        )
        async with open_store(settings) as store:
            guard = as_admin(organisation_id=(await store.organisations.default()).id)
            async with open_world(settings, store, guard) as world:
                await fill(world)
                yield world, store, settings


@pytest.fixture
async def owner(full: tuple[World, Store, Settings]) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(full[0].app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_answers_within_its_bounds(owner: httpx.AsyncClient, name: str) -> None:
    """Each screen is a page of at most 100 KB with one heading of the first rank."""
    page = await owner.get(SCREENS[name])
    assert page.status_code == 200, name
    assert len(page.content) <= _MAX_BYTES
    assert page.text.count("<h1") == 1
    assert "None" not in page.text


async def test_who_is_bound_to_a_tenant_sees_only_it(
    full: tuple[World, Store, Settings],
) -> None:
    """A tenant's viewer opens its own screens; another's are not there, the platform's refused."""
    world, store, settings = full
    acme = await world.parts.admin.tenants.get("acme")
    guard = as_admin(
        AdminRole.TENANT_VIEWER, organisation_id=acme.organisation_id, tenant_id=acme.id
    )
    async with open_world(settings, store, guard) as bound:
        transport = httpx.ASGITransport(bound.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            for tab in ("", "/keys", "/usage", "/requests", "/settings", "/audit"):
                assert (await client.get(f"/admin/tenants/acme{tab}")).status_code == 200, tab
                assert (await client.get(f"/admin/tenants/globex{tab}")).status_code == 404, tab
            for path in ("/admin", "/admin/scheduler", "/admin/settings", "/admin/live"):
                assert (await client.get(path)).status_code == 403, path
            for path in ("/admin/tenants", "/admin/keys", "/admin/requests", "/admin/audit"):
                page = await client.get(path)
                assert page.status_code == 200, path
                assert "globex" not in page.text, path
            sent = {"rpm": "1", "version": "1"}
            refused = await client.post("/admin/tenants/acme/limits", data=sent)
            assert refused.status_code == 403


async def test_who_is_bound_to_a_tenant_changes_only_its_keys(
    full: tuple[World, Store, Settings],
) -> None:
    """An owner of a tenant reaches by no form another's keys, or what is the platform's."""
    world, store, settings = full
    acme = await world.parts.admin.tenants.get("acme")
    [other, *_] = (await world.parts.admin.keys.page(PageRequest(9), tenant="globex")).data
    guard = as_admin(
        AdminRole.TENANT_OWNER, organisation_id=acme.organisation_id, tenant_id=acme.id
    )
    platforms = [f"tenants/{name}/{form}" for name in ("acme", "globex") for form in TENANT_FORMS]
    async with open_world(settings, store, guard) as bound:
        transport = httpx.ASGITransport(bound.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            for form in ("", "/rotate", "/revoke"):
                path = f"/admin/keys/{other.kid}{form}"
                sent = {"name": "mine", "max_tier": "default", "grace_s": "0"}
                assert (await client.post(path, data=sent)).status_code == 404, form
            made = await client.post("/admin/keys/new", data={"tenant": "globex", "name": "x"})
            assert made.status_code == 404
            for form in (*PLATFORM_FORMS, *platforms):
                assert (await client.post(f"/admin/{form}", data={})).status_code == 403, form
    assert await world.parts.admin.keys.get(other.kid) == other


async def test_a_request_is_told_as_it_happened(owner: httpx.AsyncClient) -> None:
    """A request's page has its phases, the scheduler's reasons, and what took the time."""
    listed = await owner.get("/admin/requests?status=200&missed=yes")
    address = "/admin/requests/req_" + listed.text.partition("/admin/requests/req_")[2][:32]
    page = await owner.get(address)
    assert "ahead 3" in page.text
    assert "for slots" in page.text
    assert "promised 200 ms" in page.text
    assert (await owner.get("/admin/requests/req_" + "0" * 32)).status_code == 404
    assert (await owner.get("/admin/requests/no-id")).status_code == 404


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("req_" + "a" * 32, "/admin/requests/req_" + "a" * 32),
        ("acme", "/admin/tenants?q=acme"),
        ("", "/admin/tenants"),
    ],
)
async def test_what_is_looked_for_is_found_by_how_it_looks(
    owner: httpx.AsyncClient, text: str, place: str
) -> None:
    """An id leads to its request, other words to the tenants whose names have them."""
    found = await owner.get("/admin/search", params={"q": text})
    assert found.headers["location"] == place


@pytest.mark.parametrize(
    "path",
    [
        "/admin/tenants?after=nonsense",
        "/admin/keys?tenant=nobody",
        "/admin/requests?tenant=nobody&status=x&cause=x",
        "/admin/batches?tenant=nobody",
        "/admin/audit?tenant=nobody&from=x&actor=%00",
        "/admin/scheduler/change?model=nobody&policy=fcfs",
        "/admin/scheduler/change?model=sluice-demo&policy=nobody",
        "/admin/tenants/" + "x" * 300,
        "/admin/keys/nobody",
        "/admin/plans/nobody",
    ],
)
async def test_what_makes_no_sense_is_never_our_fault(owner: httpx.AsyncClient, path: str) -> None:
    """Odd addresses are answered with a page, and never with a 500."""
    page = await owner.get(path)
    assert page.status_code < 500
    assert page.headers["content-type"].startswith("text/html")
