"""What stands before the pages: hosts, other sites, forms, and what every answer says."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest

from admin_ui.guards.headers import POLICY
from admin_ui.login.places import place_after, place_of
from gateway.domain.admin import Admin, AdminRole
from gateway.store import Store
from tests.admin_ui.people import HOST, browser, form_token, open_pages, sign_in

pytestmark = pytest.mark.anyio

ANSWERS = ["/admin/login", "/admin", "/admin/v1/tenants", "/portal/login"]
STRANGE_HOSTS = [
    "evil.example",
    "evil.example:8001",
    "127.0.0.1.evil.example:8001",
    "localhost.evil.example",
    "127.0.0.1:8001@evil.example",
    "127.0.0.2:8001",
    "10.0.0.7",
    "[::2]:8001",
    "0.0.0.0:8001",
    "a b",
    "",
]
OWN_HOSTS = ["localhost:8001", "127.0.0.1", "[::1]:9", "LOCALHOST:1"]
STRANGE_TARGETS = ["//admin", "/admin//users", "/%2e%2e/admin", "/admin/%2e%2e/x", "/admin%2fusers"]
OTHER_SITES = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "cross-site", "origin": f"http://{HOST}"},
    {"sec-fetch-site": "", "origin": "https://evil.example"},
    {"sec-fetch-site": "", "origin": "null"},
    {"sec-fetch-site": "", "origin": "http://127.0.0.1:3000"},
    {"sec-fetch-site": ""},
]
OTHER_PLACES = [
    "https://evil.example/",
    "//evil.example",
    "/\\evil.example",
    "/admin//evil.example",
    "/admin/../../evil",
    "/adminevil.example",
    "/admin@evil.example",
    "/admin\r\nset-cookie: a=b",
    "javascript:alert(1)",
    "/admin/logout",
    "/admin/x#@evil.example",
    "/" + "admin/" * 1000,
]


async def test_who_is_not_signed_in_is_sent_to_sign_in(store: Store) -> None:
    """Every page but those of signing in answers a stranger with the way there, and no more."""
    pages = await open_pages(store)
    async with browser(pages.app) as client:
        for path in ("/admin", "/admin/tenants", "/admin/x", "/adminx", "/portal", "/portal/x"):
            answer = await client.get(path)
            if path == "/adminx":
                assert answer.status_code == 404
                continue
            login = "/portal/login" if path.startswith("/portal") else "/admin/login"
            assert urlpath(answer) == login
            assert not answer.content


async def test_a_script_without_a_session_is_told_and_not_redirected(store: Store) -> None:
    """A part of a page is not answered with the login page, and a live view with nothing."""
    pages = await open_pages(store)
    async with browser(pages.app) as client:
        part = await client.get("/admin/tenants", headers={"hx-request": "true"})
        live = await client.get("/admin/live", headers={"accept": "text/event-stream"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/admin/login")
    assert live.status_code == 401


async def test_every_answer_has_the_headers(store: Store) -> None:
    """Pages, redirects and the admin API's own JSON forbid scripts, frames, guesses and caches."""
    pages = await open_pages(store)
    for path in ANSWERS:
        async with browser(pages.app) as client:
            headers = (await client.get(path)).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_host_that_is_not_ours_is_refused(store: Store) -> None:
    """A page whose own name resolves to this port, and a poisoned host, get nothing (rebinding)."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        await sign_in(client, "ann")
        for host in STRANGE_HOSTS:
            for path in ("/admin/login", "/admin/account"):
                answer = await client.get(path, headers={"host": host})
                assert answer.status_code == 403
                assert "ann" not in answer.text
                assert "location" not in answer.headers


async def test_a_name_of_this_machine_is_ours_on_any_port(store: Store) -> None:
    """A tunnel that ends at another port reaches the pages."""
    pages = await open_pages(store)
    async with browser(pages.app) as client:
        for host in OWN_HOSTS:
            assert (await client.get("/admin/login", headers={"host": host})).status_code == 200


async def test_the_host_that_operators_named_is_ours_with_its_port(store: Store) -> None:
    """The public URL's host is let in, and no other port or name of it."""
    pages = await open_pages(store, public_url="https://sluice.example:8443")
    async with browser(pages.app) as client:
        statuses = [
            (await client.get("/admin/login", headers={"host": host})).status_code
            for host in ("sluice.example:8443", "sluice.example", "x.sluice.example:8443")
        ]
    assert statuses == [200, 403, 403]


async def test_a_path_that_reads_in_two_ways_is_no_page(store: Store) -> None:
    """What a proxy may have read differently is refused or found nowhere, signed in or not."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        await sign_in(client, "ann")
        for target in STRANGE_TARGETS:
            answer = await client.get(httpx.URL(f"http://{HOST}", raw_path=target.encode()))
            assert answer.status_code in (400, 404), target


async def test_a_post_of_another_site_is_refused(store: Store) -> None:
    """Even with the right cookie and the right token, a change comes from our own page."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        await sign_in(client, "ann")
        for headers in OTHER_SITES:
            form = {"form_token": await form_token(client)}
            answer = await client.post("/admin/logout", data=form, headers=headers)
            login = await client.post(
                "/admin/login", data={"name": "ann", "password": "x"}, headers=headers
            )
            assert (answer.status_code, login.status_code) == (403, 403)
            assert (await client.get("/admin/account")).status_code == 200


async def test_an_origin_counts_where_the_browser_says_no_more(store: Store) -> None:
    """A browser without Sec-Fetch-Site signs in from our own page."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        client.headers["sec-fetch-site"] = ""
        client.headers["origin"] = f"http://{HOST}"
        assert (await sign_in(client, "ann")).headers["location"] == "/admin"


async def test_a_form_without_its_sessions_token_is_refused(store: Store) -> None:
    """No token, a made-up one, and one of another session of the same user change nothing."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client, browser(pages.app) as other:
        await sign_in(client, "ann")
        await sign_in(other, "ann")
        foreign = await form_token(other)
        for token in ("", "0" * 64, foreign):
            answer = await client.post("/admin/logout", data={"form_token": token})
            assert answer.status_code == 403, token
        htmx = await client.post("/admin/logout", headers={"x-form-token": foreign})
        assert htmx.status_code == 403
        assert (await client.get("/admin/account")).status_code == 200


async def test_a_token_counts_in_a_field_a_header_and_before_a_file(store: Store) -> None:
    """Forms, scripts and uploads bring the token in their own ways."""
    pages = await open_pages(store)
    await pages.add("ann")
    for send in ("field", "header", "file"):
        async with browser(pages.app) as client:
            await sign_in(client, "ann")
            token = await form_token(client)
            if send == "field":
                answer = await client.post("/admin/logout", data={"form_token": token})
            elif send == "header":
                answer = await client.post("/admin/logout", headers={"x-form-token": token})
            else:
                answer = await client.post(
                    "/admin/logout",
                    data={"form_token": token},
                    files={"file": ("a.jsonl", b"x" * 100_000)},
                )
            assert answer.status_code == 303, send


async def test_a_token_does_not_outlive_its_session(store: Store) -> None:
    """A form that is sent again after its session has ended is a stranger's."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        await sign_in(client, "ann")
        token, cookies = await form_token(client), dict(client.cookies)
        await client.post("/admin/logout", data={"form_token": token})
        client.cookies.update(cookies)
        replayed = await client.post("/admin/account/sessions", data={"form_token": token})
        assert urlpath(replayed) == "/admin/login"
        client.cookies.clear()
        await sign_in(client, "ann")
        again = await client.post("/admin/logout", data={"form_token": token})
        assert again.status_code == 403


async def test_signing_in_leads_to_no_other_site(store: Store) -> None:
    """An address to go on to that is not one of our pages is passed over."""
    pages = await open_pages(store)
    await pages.add("ann")
    for asked in OTHER_PLACES:
        assert place_after(asked, "/admin") == "/admin", asked
        async with browser(pages.app) as client:
            assert (await sign_in(client, "ann", next=asked)).headers["location"] == "/admin"


async def test_signing_in_leads_back_to_where_one_was(store: Store) -> None:
    """The page that was asked for, its query included, is where one comes to."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        login = await client.get("/admin/tenants?plan=a&state=x", follow_redirects=True)
        assert 'value="/admin/tenants?plan=a&amp;state=x"' in login.text
        there = await sign_in(client, "ann", next="/admin/tenants?plan=a&state=x")
    assert there.headers["location"] == "/admin/tenants?plan=a&state=x"


def urlpath(answer: httpx.Response) -> str:
    """Return where a redirect leads, without its query."""
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].partition("?")[0]


def test_people_of_a_tenant_go_on_below_the_portal() -> None:
    """Whatever page was asked for, who is bound to a tenant comes to one of its own."""
    bound = Admin("bob", AdminRole.TENANT_VIEWER, UUID(int=1), UUID(int=2))
    asked = ("/admin", "/admin/tenants/acme", "", "https://evil.example", "/portal/usage?a=1")
    places = [place_of(bound, one) for one in asked]
    assert places == ["/portal"] * 4 + ["/portal/usage?a=1"]
    assert place_of(Admin("ann", AdminRole.OWNER, UUID(int=1)), "/admin/keys") == "/admin/keys"
