"""Every screen, over a full store: it answers, within its bounds, to whom it is for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.batch_ids import batch_name
from gateway.domain import Tier
from gateway.domain.admin import AdminRole
from gateway.domain.page import PageRequest
from gateway.settings import Settings
from gateway.store import Store, open_store
from tests.admin_ui.guard import as_admin
from tests.admin_ui.screens import SCREENS
from tests.admin_ui.screens import owner_of as guard_of
from tests.admin_ui.world import ANN, RUNNING, World, fill, open_world
from tests.gateway.conftest import Databases, owner_of

pytestmark = pytest.mark.anyio

_MAX_BYTES = 100_000
PORTAL = [path for path in SCREENS.values() if path.startswith("/portal") and "play" not in path]
for path in ("/portal/keys/new", "/portal/batches/new"):
    PORTAL.remove(path)
# Of other tenants, of shares, of the queue.
FOREIGN = ("globex", "initech", "weight", "Weight", "entitled", "/admin/tenants", "/admin/live")
CHANGES = ("/portal/keys/new", "/portal/keys/x", "/portal/keys/x/rotate", "/portal/keys/x/revoke",
           "/portal/batches/new", f"/portal/batches/{batch_name(RUNNING)}/cancel",
           f"/portal/batches/{batch_name(RUNNING)}/retry")  # fmt: skip
TENANT_FORMS = ("settings", "settings/preview", "archive", "limits", "limits/preview", "override",
                "override/preview", "override/clear")  # fmt: skip
PLATFORM_FORMS = ("tenants/new", "plans/new", "plans/x", "plans/x/remove", "prices",
                  "batches/requeue", "batches/new", "batches/x/cancel", "batches/x/retry",
                  "scheduler/change", "scheduler/what-if")  # fmt: skip


@pytest.fixture(scope="module")
async def full(
    databases: Databases, servers: object, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[World, Store, Settings]]:
    """Fill a store once for all tests of this module, which change nothing that others look at."""
    with databases.fresh("migrated") as url:
        settings = Settings(
            data_dir=tmp_path_factory.mktemp("full"),
            database_url=url,
            database_owner_url=owner_of(url),
            redis_url=servers.redis_url(),  # type: ignore[attr-defined]
        )
        async with (
            open_store(settings) as store,
            open_world(settings, store, await guard_of(store)) as world,
        ):
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
    """A tenant's viewer reads its portal, where nothing is of others, and opens nothing else."""
    world, store, settings = full
    acme = await world.parts.admin.tenants.get("acme")
    guard = as_admin(
        AdminRole.TENANT_VIEWER, organisation_id=acme.organisation_id, tenant_id=acme.id
    )
    async with open_world(settings, store, guard) as bound:
        transport = httpx.ASGITransport(bound.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            for name in SCREENS.values():
                if name.startswith("/admin"):
                    assert (await client.get(name)).status_code == 403, name
            for path in (*PORTAL, "/portal/audit?kind=quota", "/portal/audit?kind=tenant"):
                page = await client.get(path)
                assert page.status_code == 200, path
                for word in FOREIGN:
                    assert word not in page.text, (path, word)
            for path in ("tenant=globex", "status=429&tenant=globex"):
                page = await client.get(f"/portal/requests?{path}")
                assert "There is no tenant of that name" in page.text
            for path in ("/portal/batches?tenant=globex", "/portal/usage?tenant=globex"):
                assert "globex" not in (await client.get(path)).text.replace("?tenant=globex", "")
            for path in (*CHANGES, "/portal/playground", "/portal/playground/stream"):
                assert (await client.post(path, data={"key": "x"})).status_code == 403, path
            for path in ("/portal/playground", "/portal/batches/new"):
                assert (await client.get(path)).status_code == 403, path


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
                path = f"/portal/keys/{other.kid}{form}"
                sent = {"name": "mine", "max_tier": "default", "grace_s": "0"}
                assert (await client.post(path, data=sent)).status_code == 404, form
            assert (await client.get(f"/portal/keys/{other.kid}")).status_code == 404
            made = await client.post("/portal/keys/new", data={"tenant": "globex", "name": "x"})
            assert "Secret of x, of acme" in made.text
            chat = {"key": other.kid, "prompt": "Hi", "model": "sluice-demo"}
            for path in ("/portal/playground", "/portal/playground/stream"):
                assert (await client.post(path, data=chat)).status_code == 404, path
            assert bound.chat.asked == []
            assert (await client.post("/admin/keys/new", data={})).status_code == 403
            for form in (*PLATFORM_FORMS, *platforms):
                assert (await client.post(f"/admin/{form}", data={})).status_code == 403, form
    assert await world.parts.admin.keys.get(other.kid) == other


async def test_the_portal_explains_limits_and_goes_on_beyond_them(
    full: tuple[World, Store, Settings], owner: httpx.AsyncClient
) -> None:
    """What is used up and what was refused is said, with what to do; pages answer all the same."""
    page = await owner.get("/portal")
    assert "Tokens a day used up" in page.text
    assert "Requests a minute, of the tenant" in page.text
    assert '<td class="num">1</td>' in page.text, "of others there are more"
    assert "It fills again all the time" in page.text
    assert ">97.7 %<" in page.text
    part = await owner.get("/portal/meters")
    assert 'hx-get="/portal/meters"' in part.text
    assert "<html" not in part.text
    day = (await owner.get("/portal/usage")).text
    assert "qwen3-0.6b" in day
    assert (await owner.get("/portal/search?q=acme")).headers["location"] == "/portal"


async def test_a_tenant_asks_only_so_often_and_others_go_on(
    full: tuple[World, Store, Settings],
) -> None:
    """Beyond its reads of a minute a tenant's pages are a 429 that says so; another's answer."""
    world, store, settings = full
    organisation_id = (await store.organisations.default()).id
    tenants = [await world.parts.admin.tenants.get(name) for name in ("acme", "globex")]

    def guard(app: ASGIApp) -> ASGIApp:
        role = AdminRole.TENANT_OWNER
        acme, globex = (
            as_admin(role, organisation_id=organisation_id, tenant_id=one.id)(app)
            for one in tenants
        )

        async def of_agent(scope: Scope, receive: Receive, send: Send) -> None:
            is_other = dict(scope["headers"])[b"user-agent"] == b"globex"
            await (globex if is_other else acme)(scope, receive, send)

        return of_agent

    few = settings.model_copy(update={"read_rpm": 15})
    async with open_world(few, store, guard) as bound:
        transport = httpx.ASGITransport(bound.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            assert (await client.get("/portal/usage")).status_code == 200
            refused = await client.get("/portal/usage")
            assert refused.status_code == 429
            assert "Too often" in refused.text
            last = 200
            while last == 200:
                last = (await client.get("/portal/prices")).status_code
            assert last == 429
            chat = {"key": "x", "prompt": "Hi", "model": "sluice-demo"}
            for path in ("/portal", "/portal/requests", "/portal/audit", "/portal/playground"):
                assert (await client.get(path)).status_code == 429, path
            assert (await client.post("/portal/playground", data=chat)).status_code == 429
            other = {"user-agent": "globex"}
            assert (await client.get("/portal/usage", headers=other)).status_code == 200


async def test_a_change_in_the_portal_counts_for_ten_pages(
    full: tuple[World, Store, Settings],
) -> None:
    """Its record is kept for good: a tenant's owner makes fewer of them than it may read pages."""
    world, store, settings = full
    tenant = await world.parts.admin.tenants.get("acme")
    guard = as_admin(
        AdminRole.TENANT_OWNER, organisation_id=tenant.organisation_id, tenant_id=tenant.id
    )
    few = settings.model_copy(update={"read_rpm": 15})
    async with open_world(few, store, guard) as bound:
        transport = httpx.ASGITransport(bound.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            changed = [await client.post("/portal/keys/nobody/revoke") for _ in range(2)]
            assert [one.status_code for one in changed] == [404, 429]
            assert (await client.get("/portal")).status_code == 200


async def test_a_tenants_owner_makes_keys_within_what_operators_allow(
    full: tuple[World, Store, Settings], owner: httpx.AsyncClient
) -> None:
    """A key is made, rotated and revoked in the portal; one above the tenant's class is told so."""
    world = full[0]
    await world.parts.admin.tenants.update(ANN, "acme", {"max_tier": Tier.DEFAULT})
    above = await owner.post("/portal/keys/new", data={"name": "own", "max_tier": "priority"})
    assert above.status_code == 400
    assert "at most in this tenant" in above.text
    made = await owner.post("/portal/keys/new", data={"name": "own"})
    path = "/portal/keys/" + made.text.partition('href="/portal/keys/')[2].partition('"')[0]
    rotated = await owner.post(f"{path}/rotate", data={"grace_s": "3600"})
    assert "The old secret works until" in rotated.text
    revoked = await owner.post(f"{path}/revoke", data={})
    assert revoked.headers["location"] == f"{path}?said=revoked"
    changes = (await owner.get("/portal/audit")).text
    assert "key.revoke" in changes
    assert "127.0.0.1" not in changes


async def test_a_tenant_learns_of_its_request_and_not_of_the_queue(
    owner: httpx.AsyncClient,
) -> None:
    """In the portal a request has its own times and causes, and nothing of who was ahead."""
    listed = await owner.get("/portal/requests?missed=yes")
    address = "/portal/requests/req_" + listed.text.partition("/portal/requests/req_")[2][:32]
    page, whole = await owner.get(address), await owner.get(address.replace("portal", "admin"))
    assert "It waited for its turn." in page.text
    for word in ("ahead of it", "ahead 3", "for slots", "limits 4", "/admin/tenants"):
        assert word in whole.text, word
        assert word not in page.text, word
    others = await owner.get("/admin/requests?tenant=globex")
    foreign = others.text.partition("/admin/requests/req_")[2][:32]
    assert (await owner.get(f"/portal/requests/req_{foreign}")).status_code == 404


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
        ("acme&plan=free #1 50%", "/admin/tenants?q=acme%26plan%3Dfree+%231+50%25"),
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
        "/admin/audit?actor=%00",
        "/admin/tenants?q=%00",
        "/admin/tenants?plan=%00",
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


@pytest.mark.parametrize("back", ["//[x", "//example.org", "http://example.org/admin", ""])
async def test_a_way_back_that_is_none_of_ours_is_the_overview(
    owner: httpx.AsyncClient, back: str
) -> None:
    """Where a form was sent from is believed below our roots, and anything else never read on."""
    for path in ("/admin/theme", "/admin/rows"):
        answer = await owner.post(path, data={"back": back})
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin")
