"""Signing in and out: by password, by link, by key, and all that ends a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from admin_ui.pages import Pages as Renders
from admin_ui.screens import screen
from gateway.api.admin.routing import EVERYONE, OWNERS
from gateway.api.form import FileForm
from gateway.domain.admin import SYSTEM, AdminRole
from gateway.domain.page import PageRequest
from gateway.domain.sign_in import Session
from gateway.errors import GatewayError, LinkOver
from gateway.ports import SessionStore
from gateway.services.sign_in import attempts
from gateway.services.sign_in.failed_logins import LEAST
from gateway.store import Store
from gateway.store.sign_in_tables import password_links, sessions, users
from gateway.store.tables import audit_log
from tests.admin_ui.people import (
    CALLER,
    PASSWORD,
    Pages,
    browser,
    form_token,
    link_in,
    open_pages,
    sign_in,
)

pytestmark = pytest.mark.anyio


async def test_the_first_link_makes_an_owner_once(store: Store) -> None:
    """The link of the banner sets a password, signs in, and is good for nothing afterwards."""
    pages = await open_pages(store)
    link = await pages.people.first_link()
    second = await pages.people.first_link()
    assert link is not None
    assert second is not None
    form = {"link": link, "name": "Ann@example.org", "password": PASSWORD, "again": PASSWORD}
    async with browser(pages.app) as client:
        assert "first owner" in (await client.get(f"/admin/password?link={link}")).text
        done = await client.post("/admin/password", data=form)
        assert (done.status_code, done.headers["location"]) == (303, "/admin")
        assert "ann@example.org" in (await client.get("/admin/account")).text
    async with browser(pages.app) as client:
        for used in (link, second):
            assert (await client.get(f"/admin/password?link={used}")).status_code == 401
            again = await client.post("/admin/password", data=form | {"link": used})
            assert again.status_code == 401
        assert (await sign_in(client, "ANN@example.org ")).status_code == 303
    assert await pages.people.first_link() is None


async def test_a_link_for_the_first_owner_is_told(store: Store) -> None:
    """Whoever makes one has a record in the audit log, with their address and without the link."""
    pages = await open_pages(store)
    link = await pages.users.first_link(CALLER.actor("local", AdminRole.OWNER))
    async with store.database.platform() as connection:
        query = select(audit_log).where(audit_log.c.action == "user.link")
        row = (await connection.execute(query)).one()
    assert (row.actor, row.ip, row.object_id) == ("local", "192.0.2.9", "first owner")
    assert row.after == {"role": "owner"}
    assert link not in str(row)


async def test_a_link_that_is_late_or_made_up_sets_nothing(store: Store) -> None:
    """A link past its hour, one of another server and one with a letter changed are refused."""
    pages = await open_pages(store)
    link = await pages.people.first_link()
    assert link is not None
    async with store.database.platform() as connection:
        await connection.execute(
            update(password_links).values(expires_at=func.now() - timedelta(seconds=1))
        )
    form = {"name": "ann", "password": PASSWORD, "again": PASSWORD}
    async with browser(pages.app) as client:
        for bad in (link, link[:-1] + "x", "sluice_link_" + "0" * 50, ""):
            assert (
                await client.post("/admin/password", data=form | {"link": bad})
            ).status_code == 401
    async with store.database.platform() as connection:
        assert (await connection.execute(select(func.count()).select_from(users))).scalar() == 0


async def test_weak_passwords_are_refused_and_the_link_lives_on(store: Store) -> None:
    """Short ones, the name's own and one letter again and again leave the link as it was."""
    pages = await open_pages(store)
    link = await pages.people.first_link()
    assert link is not None
    async with browser(pages.app) as client:
        for weak in ("short", "aaaaaaaaaaaaaaaa", "annannannannann", "x" * 257):
            form = {"link": link, "name": "ann", "password": weak, "again": weak}
            assert (await client.post("/admin/password", data=form)).status_code == 400, weak
        form = {"link": link, "name": "ann", "password": PASSWORD, "again": PASSWORD + "x"}
        assert (await client.post("/admin/password", data=form)).status_code == 400
        assert (await client.get(f"/admin/password?link={link}")).status_code == 200


async def test_every_wrong_login_gets_the_same_answer(store: Store) -> None:
    """Unknown, without a password, suspended and mistyped look alike but for the name typed."""
    pages = await open_pages(store)
    await pages.add("ann")
    await pages.add("bob")
    await pages.users.create(pages.owner, SYSTEM, name="eve", role=AdminRole.OWNER)
    await pages.users.update(pages.owner, SYSTEM, "bob", is_suspended=True)
    answers = set()
    async with browser(pages.app) as client:
        for name, password in (
            ("ann", "a wrong password"),
            ("bob", PASSWORD),
            ("eve", PASSWORD),
            ("nobody", PASSWORD),
            ("no name at all!", PASSWORD),
        ):
            answer = await sign_in(client, name, password)
            request_id = answer.headers["x-request-id"]
            shown = answer.text.replace(f'value="{name}"', "").replace(request_id, "")
            answers.add((answer.status_code, shown))
            assert not client.cookies
    assert len(answers) == 1
    assert {status for status, _ in answers} == {401}


async def test_the_cookie_is_for_this_host_alone(store: Store) -> None:
    """Over TLS it is a `__Host-` cookie, over plain HTTP not called so; no script reads it."""
    pages = await open_pages(store, public_url="https://sluice.example")
    await pages.add("ann")
    async with browser(pages.app, host="sluice.example", scheme="https") as client:
        secure = (await sign_in(client, "ann")).headers["set-cookie"]
    async with browser(pages.app) as client:
        plain = (await sign_in(client, "ann")).headers["set-cookie"]
    # A proxy that ends TLS speaks plain HTTP to the server, of the public host.
    async with browser(pages.app, host="sluice.example") as client:
        behind = (await sign_in(client, "ann")).headers["set-cookie"]
    assert secure.startswith("__Host-sluice_session=sluice_session_")
    assert behind.startswith("__Host-sluice_session=")
    assert plain.startswith("sluice_session_8001=")
    for cookie in (secure, behind, plain):
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Path=/" in cookie
        assert "Domain" not in cookie
        assert "Max-Age" not in cookie
    assert "Secure" in secure
    assert "Secure" in behind


async def test_signing_in_begins_a_new_session_and_ends_the_one_before(store: Store) -> None:
    """An id that the browser had before, a planted one too, is no part of what follows."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        client.cookies.set("sluice_session_8001", "sluice_session_planted", domain="127.0.0.1")
        first = await sign_in(client, "ann")
        before = dict(client.cookies)
        second = await sign_in(client, "ann")
        assert first.headers["set-cookie"] != second.headers["set-cookie"]
        assert "planted" not in first.headers["set-cookie"]
    assert not await _is_signed_in(pages, before)


async def test_a_session_ends_at_logout_for_every_gateway(store: Store) -> None:
    """What was signed out changes nothing anywhere, at once, and reads nothing within a second."""
    here, there = await open_pages(store), await open_pages(store)
    await here.add("ann")
    async with browser(here.app) as client:
        await sign_in(client, "ann")
        cookies, token = dict(client.cookies), await form_token(client)
        assert await _is_signed_in(there, cookies)
        await client.post("/admin/logout", data={"form_token": token})
        assert not client.cookies
    assert not await _is_signed_in(here, cookies)
    async with browser(there.app) as client:
        client.cookies.update(cookies)
        form = {"form_token": token, "session": "x"}
        change = await client.post("/admin/account/sessions", data=form)
        assert change.headers["location"] == "/admin/login"
    await _ends_within_a_second(there, cookies)


@pytest.mark.parametrize("what", ["role", "suspended", "removed", "reset", "revoked"])
async def test_a_session_ends_with_the_right_it_rests_on(store: Store, what: str) -> None:
    """Demoted, suspended, removed, given a new password or revoked: refused here at once."""
    here, there = await open_pages(store), await open_pages(store)
    await here.add("ann")
    await here.add("bob")
    async with browser(here.app) as client:
        await sign_in(client, "bob")
        cookies = dict(client.cookies)
        assert (await client.get("/admin/users")).status_code == 200
        assert await _is_signed_in(there, cookies)
        users = here.users
        if what == "role":
            await users.update(here.owner, SYSTEM, "bob", role=AdminRole.VIEWER)
        elif what == "suspended":
            await users.update(here.owner, SYSTEM, "bob", is_suspended=True)
        elif what == "removed":
            await users.remove(here.owner, SYSTEM, "bob")
        elif what == "reset":
            _, link = await users.reset(here.owner, SYSTEM, "bob")
            assert (await client.get("/admin/users")).status_code == 200
            await here.people.sign_in.with_link(link, "", "another password 1", CALLER)
        else:
            page = await here.people.sessions.page(PageRequest(100))
            [session] = [one for one in page.data if one.title == "bob"]
            await users.end_session(SYSTEM, session.id)
        assert (await client.get("/admin/users")).headers["location"].startswith("/admin/login")
    await _ends_within_a_second(there, cookies)


@pytest.mark.parametrize("way", ["field", "header", "file", "drained"])
async def test_a_change_that_comes_slowly_is_made_by_who_still_may(store: Store, way: str) -> None:
    """A form begun before its sender was suspended, and ended after, changes nothing."""
    pages = await open_pages(store, screens=_draining)
    await pages.add("ann")
    await pages.add("bob")
    path = "/admin/drained" if way == "drained" else "/admin/users"
    async with browser(pages.app) as client:
        await sign_in(client, "bob")
        token = await form_token(client)
        rest = b"&name=eve&role=owner"
        headers = {"content-type": "application/x-www-form-urlencoded"}
        first = f"form_token={token}".encode()
        if way == "header":
            headers = {"content-type": "text/plain", "x-form-token": token}
        elif way in ("file", "drained"):
            headers = {"content-type": "multipart/form-data; boundary=x"}
            field = b'--x\r\nContent-Disposition: form-data; name="form_token"\r\n\r\n'
            file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            first = field + token.encode() + b"\r\n" + file + b"-" * 8192

        async def slowly() -> AsyncIterator[bytes]:
            yield first
            await pages.users.update(pages.owner, SYSTEM, "bob", is_suspended=True)
            yield rest

        answer = await client.post(path, content=slowly(), headers=headers)
        assert answer.status_code == 403
    names = [user.name for user in (await pages.users.page(pages.owner, PageRequest(9))).data]
    assert names == ["ann", "bob"]


async def test_a_password_that_was_set_ends_the_links_from_before(store: Store) -> None:
    """Of two ways to a new password the one that is taken closes the other."""
    pages = await open_pages(store)
    await pages.add("ann")
    _, link = await pages.users.reset(pages.owner, SYSTEM, "ann")
    async with browser(pages.app) as client:
        await sign_in(client, "ann")
        form = {
            "form_token": await form_token(client),
            "old": PASSWORD,
            "password": "another password 2",
            "again": "another password 2",
        }
        assert (await client.post("/admin/account/password", data=form)).status_code == 303
        assert (await client.get(f"/admin/password?link={link}")).status_code == 401


async def test_the_first_owner_is_nobody_elses_link(store: Store) -> None:
    """A link for a user whose name the first owner takes does not set the owner's password."""
    pages = await open_pages(store)
    first = await pages.people.first_link()
    assert first is not None
    _, link = await pages.users.create(pages.owner, SYSTEM, name="bob", role=AdminRole.VIEWER)
    await pages.people.sign_in.with_link(first, "bob", PASSWORD, CALLER)
    with pytest.raises(LinkOver):
        await pages.people.sign_in.with_link(link, "", "another password 2", CALLER)


async def test_a_changed_password_ends_all_sessions_but_the_one_that_begins(store: Store) -> None:
    """Who changes a password stays signed in, with a new id; everybody else is out."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client, browser(pages.app) as other:
        await sign_in(client, "ann")
        await sign_in(other, "ann")
        before = dict(client.cookies)
        form = {
            "form_token": await form_token(client),
            "old": PASSWORD,
            "password": "another password 2",
            "again": "another password 2",
        }
        wrong = await client.post("/admin/account/password", data=form | {"old": "not that one"})
        assert wrong.status_code == 401
        assert (await client.post("/admin/account/password", data=form)).status_code == 303
        assert "password is changed" in (await client.get("/admin/account?said=changed")).text
        assert (await other.get("/admin/account")).status_code == 303
        assert not await _is_signed_in(pages, before)
        assert (await sign_in(other, "ann")).status_code == 401
        assert (await sign_in(other, "ann", "another password 2")).status_code == 303


async def test_a_session_ends_when_it_is_idle_or_old(store: Store) -> None:
    """Thirty minutes without a request end it, and twelve hours with as many as one likes."""
    pages = await open_pages(store)
    await pages.add("ann")
    for values in (
        {"seen_at": func.now() - timedelta(minutes=30)},
        {"expires_at": func.now() - timedelta(seconds=1)},
    ):
        async with browser(pages.app) as client:
            await sign_in(client, "ann")
            async with store.database.platform() as connection:
                row = (await connection.execute(select(sessions))).one()
                await connection.execute(
                    update(sessions).values(seen_at=func.now() - timedelta(minutes=29))
                )
            assert timedelta(hours=11, minutes=59) < row.expires_at - row.created_at
            assert row.expires_at - row.created_at <= timedelta(hours=12)
            assert (await client.get("/admin/account")).status_code == 200
            async with store.database.platform() as connection:
                seen = (await connection.execute(select(sessions.c.seen_at))).scalar_one()
                assert seen >= row.seen_at
                await connection.execute(update(sessions).values(**values))
            pages.people.sessions.forget()
            assert (await client.get("/admin/account")).status_code == 303


async def test_a_user_has_ten_sessions_at_most(store: Store) -> None:
    """The eleventh sign-in ends the first."""
    pages = await open_pages(store)
    await pages.add("ann")
    kept = []
    for _ in range(11):
        async with browser(pages.app) as client:
            await sign_in(client, "ann")
            kept.append(dict(client.cookies))
    assert [await _is_signed_in(pages, cookies) for cookies in kept] == [False] + [True] * 10


async def test_a_live_answer_ends_with_its_session(store: Store) -> None:
    """What streams to a browser stops within a second of its session's end, at any gateway."""
    here, there = await open_pages(store), await open_pages(store, screens=_ticking)
    await here.add("ann")
    async with browser(here.app) as client:
        await sign_in(client, "ann")
        cookies, token = dict(client.cookies), await form_token(client)
        async with there.people.sessions.running(), browser(there.app) as live:
            live.cookies.update(cookies)
            ticking = asyncio.create_task(live.get("/admin/ticks"))
            await asyncio.sleep(0.3)
            began = time.monotonic()
            await client.post("/admin/logout", data={"form_token": token})
            answer = await asyncio.wait_for(ticking, 5)
    assert time.monotonic() - began < 2
    assert answer.text.startswith("tick")


async def test_cookies_that_cannot_be_ours_ask_no_database(store: Store) -> None:
    """Made-up sessions are refused without a query, those of a letter less included."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client:
        await sign_in(client, "ann")
        real = dict(client.cookies)["sluice_session_8001"]
    counting = _Counting(store.sessions)
    pages.people.sessions._store = counting  # type: ignore[assignment]
    async with browser(pages.app) as client:

        async def status(cookie: str) -> int:
            headers = {"cookie": f"sluice_session_8001={cookie}"}
            return (await client.get("/admin/nothing", headers=headers)).status_code

        other = real[:-1] + ("1" if real.endswith("0") else "0")
        for made_up in ("", "x", other, "sluice_session_" + "0" * 50, real.lower()):
            assert await status(made_up) == 303
        assert counting.num == 0
        assert await status(real) == 404
        assert counting.num == 1


async def test_an_account_and_an_address_may_be_tried_so_often(store: Store) -> None:
    """An account waits wherever it is tried from, and is it there or not; so does an address."""
    pages, other = await open_pages(store), await open_pages(store)
    await pages.add("ann")
    for name in ("ann", "nobody"):
        for number in range(attempts.ACCOUNT_BURST):
            async with browser((pages, other)[number % 2].app, address=f"192.0.2.{number}") as one:
                assert (await sign_in(one, name, "a wrong password")).status_code == 401
        async with browser(other.app, address="192.0.2.200") as one:
            limited = await sign_in(one, name)
            assert limited.status_code == 429
            assert 1 <= int(limited.headers["retry-after"]) <= attempts.ACCOUNT_INTERVAL_S
            assert "Try again in" in limited.text
    async with browser(pages.app, address="2001:db8::1") as one:
        for number in range(attempts.ADDRESS_BURST):
            assert (await sign_in(one, f"user{number}", "a wrong one")).status_code == 401
    async with browser(other.app, address="2001:db8::2") as one:
        assert (await sign_in(one, "user99", "a wrong one")).status_code == 429


async def test_a_storm_of_failures_is_one_record_a_minute(store: Store) -> None:
    """The audit log tells how many failed and which users were meant, and no typed secret."""
    pages = await open_pages(store)
    await pages.add("ann")
    for number in range(50):
        async with browser(pages.app, address=f"192.0.2.{number}") as client:
            await sign_in(client, "ann" if number < 5 else f"my-secret-{number}", "a wrong one")
    await pages.people.failed.tell()
    await pages.people.failed.tell()
    async with store.database.platform() as connection:
        query = select(audit_log.c.after).where(audit_log.c.action == "login.failures")
        [told] = (await connection.execute(query)).scalars().all()
        everything = (await connection.execute(select(audit_log.c.after))).scalars().all()
    assert (told["failures"], told["addresses"], told["users"]) == (50, 50, {"ann": 5})
    assert "my-secret" not in str(everything)
    assert LEAST <= 50


async def test_sign_ins_and_users_are_in_the_audit_log(store: Store) -> None:
    """Who came, from where, who left, and who may come: each has a record with its actor."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app, address="192.0.2.55") as client:
        await sign_in(client, "ann")
        await client.post("/admin/logout", data={"form_token": await form_token(client)})
    async with store.database.platform() as connection:
        rows = (await connection.execute(select(audit_log).order_by(audit_log.c.seq))).all()
    told = [
        (row.action, row.actor, row.ip) for row in rows if row.object_kind in ("user", "session")
    ]
    assert told[-2:] == [
        ("login", "user:ann", "192.0.2.55"),
        ("logout", "user:ann", "192.0.2.55"),
    ]
    assert [action for action, _, _ in told[:4]] == [
        "user.create",
        "user.link",
        "user.password",
        "login",
    ]
    everything = str([(row.before, row.after) for row in rows])
    assert PASSWORD not in everything
    assert "argon2" not in everything


async def test_a_key_opens_its_tenants_portal_for_an_hour(store: Store) -> None:
    """A live key reads as its tenant's viewer, until its hour, its secret or itself ends."""
    assert store.first_start is not None
    acme = store.first_start.keys[0]
    pages = await open_pages(store, screens=_for_owners)
    for end in ("hour", "rotated", "revoked"):
        async with browser(pages.app) as client:
            text_of_key = acme.token
            if end == "revoked":
                made = await pages.keys.create(SYSTEM, "acme", name="other")
                text_of_key = made.token
            done = await client.post("/portal/login", data={"key": f" {text_of_key} "})
            assert (done.status_code, done.headers["location"]) == (303, "/portal"), done.text
            assert f"key:{text_of_key[12:24]}" in (await client.get("/admin/account")).text
            assert (await client.get("/admin/for-owners")).status_code == 403
            if end == "hour":
                async with store.database.platform() as connection:
                    row = (await connection.execute(select(sessions))).one()
                    life = row.expires_at - row.created_at
                    assert timedelta(minutes=59) < life <= timedelta(hours=1)
                    await connection.execute(
                        update(sessions).values(expires_at=func.now() - timedelta(seconds=1))
                    )
                pages.people.sessions.forget()
            elif end == "rotated":
                await pages.keys.rotate(SYSTEM, acme.key.kid, grace_s=0)
            else:
                await pages.keys.revoke(SYSTEM, text_of_key[12:24])
            await _ends_within_a_second(pages, dict(client.cookies))


async def test_a_tenants_people_ask_only_so_often_for_anything(store: Store) -> None:
    """Also for what is no page of theirs: it is drawn on everybody's event loop. Others go on."""
    pages = await open_pages(store, read_rpm=5)
    assert store.first_start is not None
    theirs, others = [issued.token for issued in store.first_start.keys[:2]]
    async with browser(pages.app) as client, browser(pages.app) as other:
        for one, key in ((client, theirs), (other, others)):
            await one.post("/portal/login", data={"key": key})
        paths = ("/admin/account", "/admin/users", "/portal/nothing")
        found = [(await client.get(paths[n % 3])).status_code for n in range(11)]
        assert found == [200, 403, 404] * 3 + [200, 429]
        assert (await other.get("/admin/account")).status_code == 200
        # What a page is drawn with is not counted.
        assert (await client.get("/admin/static/x")).status_code == 404


async def test_a_key_that_is_none_or_over_opens_nothing(store: Store) -> None:
    """A revoked key, an admin token and nonsense get one answer, and addresses have a rate."""
    assert store.first_start is not None
    pages = await open_pages(store)
    made = await pages.keys.create(SYSTEM, "acme", name="gone")
    await pages.keys.revoke(SYSTEM, made.key.kid)
    async with browser(pages.app) as client:
        texts = set()
        for key in (made.token, store.first_start.admin_token, "x", ""):
            answer = await client.post("/portal/login", data={"key": key})
            assert answer.status_code == 401
            assert not client.cookies
            texts.add(answer.text.replace(answer.headers["x-request-id"], ""))
        assert len(texts) == 1
        for _ in range(attempts.ADDRESS_BURST):
            last = await client.post("/portal/login", data={"key": "x"})
    assert last.status_code == 429


async def test_owners_make_and_end_users_on_their_page(store: Store) -> None:
    """An owner makes a user, hands over the link that is shown once, demotes and suspends them."""
    pages = await open_pages(store)
    await pages.add("ann")
    async with browser(pages.app) as client, browser(pages.app) as new:
        await sign_in(client, "ann")
        token = {"form_token": await form_token(client)}
        made = await client.post("/admin/users", data=token | {"name": "bob", "role": "operator"})
        url = made.text.partition('readonly value="')[2].partition('"')[0]
        assert url.startswith("http://127.0.0.1:8001/admin/password?link=")
        assert url not in (await client.get("/admin/users")).text
        form = {"link": link_in(url), "password": PASSWORD, "again": PASSWORD, "name": "evil"}
        assert (await new.post("/admin/password", data=form)).status_code == 303
        assert "user:bob" in (await new.get("/admin/account")).text
        assert (await new.get("/admin/users")).status_code == 403
        role = token | {"role": "viewer", "version": "1"}
        stale = await client.post("/admin/users/bob", data=role)
        assert stale.status_code == 409
        assert "changed" in stale.text
        last = await client.post("/admin/users/ann/suspend", data=token | {"is_suspended": "yes"})
        assert last.status_code == 400
        taken = await client.post("/admin/users", data=token | {"name": "bob", "role": "viewer"})
        assert taken.status_code == 409
        gone = await client.post("/admin/users/bob/suspend", data=token | {"is_suspended": "yes"})
        assert gone.status_code == 303
        assert (await new.get("/admin/account")).status_code == 303


def _ticking(pages: Renders) -> list[Route]:
    async def ticks(request: Request) -> Response:
        async def make() -> AsyncIterator[bytes]:
            while True:
                yield b"tick"
                await asyncio.sleep(0.05)

        return StreamingResponse(make())

    return [screen("/admin/ticks", ticks, allows=EVERYONE)]


def _for_owners(pages: Renders) -> list[Route]:
    async def show(request: Request) -> Response:
        return Response("secret")

    return [screen("/admin/for-owners", show, allows=OWNERS)]


def _draining(pages: Renders) -> list[Route]:
    async def take(request: Request) -> Response:
        """Read a form on after a refusal, as an upload's is."""
        form = FileForm(request.scope, request.receive, fields=["form_token"], max_file_bytes=9999)
        try:
            [_ async for _ in form.chunks()]
        except GatewayError:
            await form.drain()
            raise
        return Response()

    return [screen("/admin/drained", take, method="POST", allows=EVERYONE)]


async def _is_signed_in(pages: Pages, cookies: dict[str, str]) -> bool:
    async with browser(pages.app) as client:
        client.cookies.update(cookies)
        return (await client.get("/admin/account")).status_code == 200


async def _ends_within_a_second(pages: Pages, cookies: dict[str, str]) -> None:
    until = time.monotonic() + 1
    while time.monotonic() < until:
        if not await _is_signed_in(pages, cookies):
            return
        await asyncio.sleep(0.05)
    assert not await _is_signed_in(pages, cookies)


class _Counting:
    """Count what is asked of a store of sessions."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.num = 0

    async def find(self, mac: bytes) -> Session | None:
        self.num += 1
        return await self._store.find(mac)
