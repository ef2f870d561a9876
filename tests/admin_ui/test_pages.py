"""What every page has: its shell, its styles, its errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from admin_ui.app import UiRoute, ui_app
from admin_ui.assets import Assets
from admin_ui.guards.entrance import refusal_context
from admin_ui.pages import About, Pages
from admin_ui.screens import read_form, screen, see
from gateway.api.admin.routing import OPERATORS, VIEWERS
from gateway.api.public import with_errors
from gateway.domain.admin import AdminRole
from gateway.errors import StoreUnavailable
from tests.admin_ui.guard import as_admin, stranger

pytestmark = pytest.mark.anyio


async def test_a_page_has_its_shell_and_nothing_inline() -> None:
    """A page names its user, its sections and its assets, and holds no inline script or style."""
    async with _client(as_admin()) as client:
        page = await client.get("/admin/hello")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert "ann" in page.text
    assert ">Tenants</a>" in page.text
    assert "<style" not in page.text
    assert " style=" not in page.text
    assert "<script>" not in page.text


async def test_whoever_opens_a_page_first_compiles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a server has run for a moment its templates are compiled, and on no event loop."""
    monkeypatch.setattr("admin_ui.pages._AFTER_S", 0.0)
    threads = list[int]()

    class Noting(Pages):
        def compile(self) -> None:
            super().compile()
            threads.append(threading.get_ident())

    pages = Noting(About("0"), Assets())
    async with pages.compiling(), asyncio.timeout(30):
        while not threads:
            await asyncio.sleep(0.01)
    assert threads != [threading.get_ident()]
    monkeypatch.setattr(Environment, "compile", None)
    scope = {
        "type": "http",
        "path": "/admin/x",
        "headers": [],
        "query_string": b"",
        "method": "GET",
    }
    page = pages.text(Request(scope), "problem_bare.html", refusal_context(403, "No", "Not so."))
    assert "Not so." in page


async def test_the_theme_of_the_cookie_is_in_the_first_byte() -> None:
    """The theme of the cookie is in the page, and one that is none is the system's."""
    async with _client(as_admin()) as client:
        dark = await client.get("/admin/hello", headers={"cookie": "sluice_theme=dark"})
        odd = await client.get("/admin/hello", headers={"cookie": "sluice_theme=%22x"})
    assert 'data-theme="dark"' in dark.text
    assert 'data-theme="system"' in odd.text


async def test_a_tenants_viewer_sees_only_what_is_for_it() -> None:
    """The navigation leaves out what a role may not open."""
    async with _client(as_admin(AdminRole.TENANT_VIEWER)) as client:
        page = await client.get("/admin/hello")
    assert 'href="/portal/keys"' in page.text
    assert 'href="/admin/' not in page.text.replace('href="/admin/static', "").replace(
        'href="/admin/account"', ""
    )


async def test_a_role_that_may_not_gets_a_page_that_says_so() -> None:
    """A screen that a role may not open answers 403, as a page."""
    async with _client(as_admin(AdminRole.VIEWER)) as client:
        page = await client.get("/admin/operators")
    assert page.status_code == 403
    assert "The role viewer may not do that." in page.text


async def test_a_store_that_is_away_is_named() -> None:
    """Where the database does not answer, the page says so and offers to try again."""
    async with _client(as_admin()) as client:
        page = await client.get("/admin/broken")
    assert page.status_code == 503
    assert "cannot reach its database" in page.text
    assert "Try again" in page.text


async def test_what_is_not_there_is_a_page_below_admin_and_json_below_the_api() -> None:
    """An unknown address of the UI is a page, one of the admin API stays JSON."""
    async with _client(as_admin()) as client:
        page = await client.get("/admin/nothing")
        api = await client.get("/admin/v1/nothing")
        other = await client.get("/adminx")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert api.json()["error"]["code"] is not None
    assert other.headers["content-type"] == "application/json"


async def test_a_page_without_a_user_has_no_navigation() -> None:
    """What a stranger is told comes on a page without navigation."""
    async with _client(stranger) as client:
        page = await client.get("/admin/nothing")
    assert "Sections" not in page.text
    assert "Nothing is here" in page.text


async def test_assets_are_kept_for_ever_under_the_hash_of_their_bytes() -> None:
    """An asset's address has its hash, and another hash is not found."""
    assets = Assets()
    async with _client(as_admin()) as client:
        style = await client.get(assets.url("app.css"))
        other = await client.get("/admin/static/0000000000000000/app.css")
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert "immutable" in style.headers["cache-control"]
    assert other.status_code == 404


@pytest.mark.parametrize(
    "place", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:1", "/x"]
)
def test_a_change_sends_nobody_to_another_site(place: str) -> None:
    """Where to go on is below /admin, whatever was sent."""
    assert see(place).headers["location"] == "/admin"


def test_what_was_done_is_told_on_the_next_page() -> None:
    """The page after a change is told what was done, beside its own query."""
    assert see("/admin/tenants?plan=a", said="made").headers["location"] == (
        "/admin/tenants?plan=a&said=made"
    )


async def test_a_form_is_read_as_it_was_sent() -> None:
    """Fields lose the spaces around them, and a body that is no form is refused."""
    async with _client(as_admin()) as client:
        good = await client.post("/admin/form", data={"name": " acme ", "n": "1,000"})
        bad = await client.post("/admin/form", content=b"\xff\xfe=1")
    assert good.text == "acme 1000"
    assert bad.status_code == 400


def _client(guard: Callable[[ASGIApp], ASGIApp]) -> httpx.AsyncClient:
    pages = Pages(About("1.2.3"), assets := Assets())

    async def hello(request: Request) -> Response:
        return pages.answer(request, "problem.html", _WORDS)

    async def broken(request: Request) -> Response:
        raise StoreUnavailable

    async def form(request: Request) -> Response:
        sent = await read_form(request)
        return Response(f"{sent.text('name')} {sent.integer('n')}")

    routes = [
        screen("/admin/hello", hello, allows=AdminRole),
        screen("/admin/operators", hello, allows=OPERATORS),
        screen("/admin/broken", broken, allows=VIEWERS),
        screen("/admin/form", form, method="POST", allows=OPERATORS),
        *assets.routes(),
    ]
    app = with_errors([UiRoute(guard(ui_app(routes, pages)))])
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://admin")


_WORDS = {
    "status": 200,
    "heading": "Hello",
    "message": "Hello.",
    "may_retry": False,
    "is_store": False,
}
