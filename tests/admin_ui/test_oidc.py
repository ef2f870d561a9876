"""Signing in at another issuer: whom an owner has invited, and nobody by what others make up."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hmac
import json
import ssl
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey
from sqlalchemy import update

from gateway.domain.admin import SYSTEM, AdminRole
from gateway.domain.page import PageRequest
from gateway.domain.sign_in import Identity, User
from gateway.errors import Conflict, InvalidRequest, IssuerUnavailable
from gateway.services.sign_in import Issuer, IssuerOptions
from gateway.store import Store
from gateway.store.sign_in_tables import users
from tests.admin_ui.oidc_issuer import CLIENT, ISSUER, SECRET, Claims, FakeIssuer
from tests.admin_ui.people import Pages, browser, form_token, open_pages, sign_in

pytestmark = pytest.mark.anyio

HOST = "sluice.example"
BEGIN, BACK = "/admin/oidc/begin", "/admin/oidc/back"
OPTIONS = IssuerOptions(
    issuer=ISSUER,
    client_id=CLIENT,
    client_secret=SECRET,
    redirect_url=f"https://{HOST}{BACK}",
    name="Example",
)
MINE = "248289761001"


class Clock:
    """Tell the time of now, and some."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def time(self) -> float:
        return time.time() + self.ahead_s

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@dataclass
class Town:
    """Hold pages with an issuer beside them, and the clock by which these know it."""

    pages: Pages
    issuer: FakeIssuer
    clock: Clock

    async def invite(self, name: str, subject: str = MINE) -> User:
        """Make a user who is somebody there."""
        user, _ = await self.pages.users.create(
            self.pages.owner, SYSTEM, name=name, role=AdminRole.OPERATOR, subject=subject
        )
        return user


async def open_town(store: Store, **more: Any) -> Town:
    fake, clock = FakeIssuer(), Clock()
    issuer = Issuer(replace(OPTIONS, **more), clock=clock, transport=fake.transport)
    pages = await open_pages(store, public_url=f"https://{HOST}", issuer=issuer)
    return Town(pages, fake, clock)


def guest(town: Town, address: str = "192.0.2.7") -> Any:
    return browser(town.pages.app, host=HOST, scheme="https", address=address)


async def left(client: httpx.AsyncClient, town: Town, place: str = "") -> str:
    """Begin a visit, sign in there, and return the way back."""
    sent = await client.get(BEGIN, params={"next": place} if place else {})
    assert sent.status_code == 303, sent.text
    return town.issuer.visit(sent.headers["location"])


async def back(client: httpx.AsyncClient, town: Town, place: str = "") -> httpx.Response:
    return await client.get(await left(client, town, place))


async def is_signed_in(client: httpx.AsyncClient) -> bool:
    return (await client.get("/admin/account")).status_code == 200


def changed(address: str, **params: str) -> str:
    """Return an address with other parameters."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query)) | params
    return parts._replace(query=urlencode(query)).geturl()


async def test_whom_an_owner_invited_signs_in_at_the_issuer(store: Store) -> None:
    """The login page leads there; who comes back has a session of the user's, like any other."""
    town = await open_town(store)
    await town.invite("ann")
    async with guest(town) as client:
        login = (await client.get("/admin/login?next=/admin/account")).text
        assert f'href="{BEGIN}?next=/admin/account"' in login
        assert "Sign in with Example" in login
        done = await back(client, town, "/admin/account")
        assert (done.status_code, done.headers["location"]) == (303, "/admin/account"), done.text
        given = done.headers.get_list("set-cookie")
        assert any(one.startswith("__Host-sluice_session=sluice_session_") for one in given)
        assert any(one.startswith('__Host-sluice_visit=""') for one in given)
        assert "user:ann" in (await client.get("/admin/account")).text
        # What was there before ends, as it does by a password.
        before = dict(client.cookies)
        assert (await back(client, town)).headers["location"] == "/admin"
    async with guest(town) as other:
        other.cookies.update(before)
        assert not await is_signed_in(other)
    assert town.issuer.num_asked == 2, "what it says of itself, and its keys, are known"


async def test_without_an_issuer_there_is_no_such_way(store: Store) -> None:
    """The login page has no button, the addresses have nothing, and no user has a subject."""
    pages = await open_pages(store)
    async with browser(pages.app) as client:
        assert "/admin/oidc" not in (await client.get("/admin/login")).text
        for path in (BEGIN, BACK, f"{BACK}?code=x&state=y"):
            assert (await client.get(path)).status_code == 404
    with pytest.raises(InvalidRequest):
        await pages.users.create(
            pages.owner, SYSTEM, name="ann", role=AdminRole.VIEWER, subject="x"
        )


async def test_an_answer_is_of_the_visit_that_this_browser_began(store: Store) -> None:
    """A state that is replayed, another browser's, late, missing or made up signs nobody in."""
    town = await open_town(store)
    await town.invite("ann")
    async with guest(town) as victim, guest(town, "192.0.2.8") as attacker:
        # Another's answer, in a browser that began a visit of its own, and in one that did not.
        theirs = await left(attacker, town)
        assert (await victim.get(theirs)).status_code == 401
        await left(victim, town)
        assert (await victim.get(theirs)).status_code == 401
        mine = await left(victim, town)
        [kept] = [one for one in victim.cookies.jar if one.name == "__Host-sluice_visit"]
        for wrong in (
            changed(mine, state="x"),
            changed(mine, state=""),
            changed(mine, state="é" * 64),
            changed(mine) + "&state=x",
            changed(mine, **{f"a{number}": "x" for number in range(20)}),
        ):
            victim.cookies.set(kept.name, kept.value or "", domain=HOST)
            refused = await victim.get(wrong)
            assert refused.status_code == 401, wrong
            assert "sign-in is over" in refused.text
        whole = (kept.value or "").partition("~")[0]
        for visit in ("", "x", "x.1~", whole[1:], f"{whole}0~", whole.replace(".", ".0")):
            victim.cookies.set(kept.name, visit, domain=HOST)
            assert (await victim.get(mine)).status_code == 401, visit
        assert not await is_signed_in(victim)
    async with guest(town, "192.0.2.9") as client:
        mine = await left(client, town)
        [kept] = [one for one in client.cookies.jar if one.name == "__Host-sluice_visit"]
        codes = dict(town.issuer._codes)
        assert (await client.get(mine)).status_code == 303
        # The very same again, with the cookie that its browser should have dropped, at an issuer
        # that takes a code twice.
        client.cookies.clear()
        client.cookies.set(kept.name, kept.value or "", domain=HOST)
        town.issuer._codes |= codes
        assert (await client.get(mine)).status_code == 401
        late = await left(client, town)
        visits = town.pages.people.visits
        assert visits is not None
        visits._clock = Clock(601)
        assert (await client.get(late)).status_code == 401
        assert not await is_signed_in(client)


def _none(claims: Claims) -> str:
    parts = (json.dumps(one).encode() for one in ({"alg": "none"}, claims))
    return b".".join([*(base64.urlsafe_b64encode(one).rstrip(b"=") for one in parts), b""]).decode()


def _by_hmac(key: RSAKey) -> Callable[[Claims], str]:
    """Sign with what everybody may read, as if it were a secret (CVE-2015-9235)."""

    def sign(claims: Claims) -> str:
        parts = ({"alg": "HS256", "kid": key.kid}, claims)
        texts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in parts]
        signed = b".".join(texts)
        mac = hmac.digest(key.as_pem(private=False), signed, "sha256")
        return (signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()

    return sign


def _with(**claims: object) -> Callable[[Claims], Claims]:
    return lambda said: {
        name: value for name, value in (said | claims).items() if value is not None
    }


async def test_a_token_that_is_not_the_issuers_for_us_now_signs_nobody_in(store: Store) -> None:
    """Each fault of an ID token is one answer to who brings it; what it was is for the log."""
    town = await open_town(store)
    await town.invite("ann")
    now = int(time.time())
    stranger = RSAKey.generate_key(2048, {"kid": "first"})
    faults: Sequence[tuple[str, dict[str, Any]]] = [
        ("nonce", {"change": _with(nonce="0" * 64)}),
        ("no nonce", {"change": _with(nonce=None)}),
        ("audience", {"change": _with(aud="another")}),
        ("audiences", {"change": _with(aud=[CLIENT, "another"])}),
        ("no audience", {"change": _with(aud=None)}),
        ("party", {"change": _with(azp="another")}),
        ("over", {"change": _with(exp=now - 61)}),
        ("endless", {"change": _with(exp=None)}),
        ("true", {"change": _with(exp=True)}),
        ("old", {"change": _with(iat=now - 700)}),
        ("of tomorrow", {"change": _with(iat=now + 3600)}),
        ("not yet", {"change": _with(nbf=now + 3600)}),
        ("issuer", {"change": _with(iss="https://evil.example")}),
        ("issuer's root", {"change": _with(iss=ISSUER + "/")}),
        ("nobody", {"change": _with(sub=None)}),
        ("empty", {"change": _with(sub="")}),
        ("number", {"change": _with(sub=248289761001)}),
        ("long", {"change": _with(sub="x" * 256)}),
        ("none", {"sign": _none}),
        ("hmac", {"sign": _by_hmac(town.issuer.key)}),
        ("another key", {"sign": FakeIssuer(key=stranger).signed}),
        ("changed", {"sign": lambda claims: town.issuer.signed(claims)[:-8] + "AAAAAAAA"}),
        ("no token", {"sign": lambda claims: "x"}),
        ("another's answer", {"iss": "https://evil.example"}),
        ("nobody's answer", {"iss": None}),
    ]
    texts = set()
    for number, (what, fault) in enumerate(faults):
        fake = town.issuer
        fake.change, fake.sign, fake.iss = _with(), None, ISSUER
        for name, value in fault.items():
            setattr(fake, name, value)
        async with guest(town, f"192.0.2.{number}") as client:
            refused = await back(client, town)
            assert refused.status_code == 401, what
            assert not await is_signed_in(client), what
            texts.add(refused.text.replace(refused.headers["x-request-id"], ""))
    assert len(texts) == 1
    [text] = texts
    assert "That sign-in did not work" in text
    town.issuer.iss = ISSUER
    town.issuer.sign, town.issuer.change = None, _with(aud=[CLIENT], azp=CLIENT, exp=now + 99)
    async with guest(town, "192.0.2.99") as client:
        assert (await back(client, town)).status_code == 303, "and one without a fault does"


async def test_who_was_not_invited_stays_out(store: Store) -> None:
    """A name or an address that is a user's here gives nothing: the subject does, as long as it is
    the user's, of this issuer."""
    town = await open_town(store)
    await town.pages.add("ann")
    user = await town.invite("bob", "another")
    town.issuer.change = _with(
        preferred_username="ann", email="ann", email_verified=True, groups=["ops"], role="owner"
    )
    async with guest(town) as client:
        refused = await back(client, town)
        assert refused.status_code == 403
        assert f"by the subject that you are there: {MINE}" in refused.text
        assert not await is_signed_in(client)
        assert [one.name for one in await _users(town)] == ["ann", "bob"]
        # The same subject, of the issuer before this one.
        async with store.database.platform() as connection:
            await connection.execute(
                update(users).where(users.c.name == "bob").values(subject=f"https://old {MINE}")
            )
        assert (await back(client, town)).status_code == 403
        people = town.pages.users
        for subject, status in ((MINE, 303), ("", 403), (MINE, 303)):
            await people.update(town.pages.owner, SYSTEM, "bob", subject=subject)
            assert not await is_signed_in(client), "another subject ends sessions"
            assert (await back(client, town)).status_code == status, subject
        with pytest.raises(Conflict):
            await people.update(town.pages.owner, SYSTEM, "ann", subject=MINE)
        with pytest.raises(Conflict):
            await town.invite("eve")
        await people.update(town.pages.owner, SYSTEM, "bob", is_suspended=True)
        suspended = await back(client, town)
        assert (suspended.status_code, "may not sign in here" in suspended.text) == (401, True)
        assert not await is_signed_in(client)
    assert user.name == "bob"


async def test_a_claim_gives_a_role_only_where_that_is_set(store: Store) -> None:
    """Who has the claim's value becomes a user of that role, once; a taken name stays another's."""
    roles = {"ops": AdminRole.OPERATOR, "all": AdminRole.VIEWER}
    town = await open_town(store, role_claim="groups", roles=roles)
    await town.pages.add("ann")
    tries = [
        ("1", {"preferred_username": "Eve", "groups": ["all", "ops"]}, 303),
        ("1", {"preferred_username": "Eve", "groups": ["all"]}, 303),
        ("2", {"preferred_username": "ann", "groups": ["ops"]}, 401),
        ("3", {"preferred_username": "dan", "groups": ["owner"]}, 403),
        ("3", {"preferred_username": "dan", "groups": None}, 403),
        ("4", {"preferred_username": "user:x", "groups": ["ops"]}, 401),
        ("5", {"groups": "all", "email": "five@example.org"}, 303),
    ]
    for number, (subject, claims, status) in enumerate(tries):
        town.issuer.subject, town.issuer.change = subject, _with(**claims)
        async with guest(town, f"192.0.2.{number}") as client:
            assert (await back(client, town)).status_code == status, claims
    found = {one.name: one.role.value for one in await _users(town)}
    assert found == {"ann": "owner", "eve": "operator", "five@example.org": "viewer"}


async def test_nobody_is_led_elsewhere(store: Store) -> None:
    """Where somebody goes on to is ours, whatever was asked for or put into the cookie."""
    town = await open_town(store)
    await town.invite("ann")
    async with guest(town) as client:
        for place in ("https://evil.example/", "//evil.example", "/admin/logout", "/admin\\@x"):
            assert (await back(client, town, place)).headers["location"] == "/admin"
            way = await left(client, town)
            [kept] = [one for one in client.cookies.jar if one.name == "__Host-sluice_visit"]
            visit = (kept.value or "").partition("~")[0]
            client.cookies.set(kept.name, f"{visit}~{place}", domain=HOST)
            assert (await client.get(way)).headers["location"] == "/admin"


async def test_an_issuer_that_is_away_or_lies_of_itself_is_told(store: Store) -> None:
    """The login page says that it does not answer; passwords go on. It is asked again, but whoever
    begins meanwhile waits for nothing and asks it nothing."""
    town = await open_town(store)
    await town.pages.add("ann")
    lies = [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://issuer.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": None},
    ]
    async with guest(town) as client:
        for lie in lies:
            town.issuer.extra = lie
            refused = await client.get(BEGIN)
            assert (refused.status_code, "does not answer" in refused.text) == (503, True), lie
            town.clock.ahead_s += 3
        town.issuer.extra, town.issuer.is_away, town.issuer.num_asked = {}, True, 0
        flood = await asyncio.gather(*(client.get(BEGIN) for _ in range(20)))
        assert {one.status_code for one in flood} == {503}
        assert town.issuer.num_asked == 1
        assert (await sign_in(client, "ann")).status_code == 303
        town.issuer.is_away = False
        assert (await client.get(BEGIN)).status_code == 503
        town.clock.ahead_s += 3
        assert (await client.get(BEGIN)).status_code == 303


async def test_certificates_are_read_once_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often an issuer is asked, they are read once, and not on the loop's thread."""
    read, threads = ssl.create_default_context, []

    def noted(*args: Any, **options: Any) -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return read(*args, **options)

    monkeypatch.setattr(ssl, "create_default_context", noted)
    clock = Clock()
    issuer = Issuer(replace(OPTIONS, issuer="http://127.0.0.1:1"), clock=clock)
    for _ in range(3):
        with pytest.raises(IssuerUnavailable):
            await issuer.look()
        clock.ahead_s += 3
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_what_an_issuer_packs_small_is_not_unpacked() -> None:
    """An answer that is 32 MiB once unpacked is not read as what it is not, and takes no memory."""
    packed = gzip.compress(b" " * (32 << 20))

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["accept-encoding"] == "identity"
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Packed(packed))

    issuer = Issuer(OPTIONS, transport=httpx.MockTransport(answer))
    tracemalloc.start()
    try:
        with pytest.raises(IssuerUnavailable):
            await issuer.look()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


class Packed(httpx.AsyncByteStream):
    """Send bytes as they are, in one piece."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


async def test_new_keys_of_the_issuer_are_asked_for(store: Store) -> None:
    """A token by a key that is new is good; by one that nobody knows the issuer is not flooded."""
    town = await open_town(store)
    await town.invite("ann")
    async with guest(town) as client:
        assert (await back(client, town)).status_code == 303
        town.issuer.key = RSAKey.generate_key(2048, {"kid": "second"})
        town.clock.ahead_s = 31
        assert (await back(client, town)).status_code == 303
        asked = town.issuer.num_asked
        town.issuer.sign = FakeIssuer(key=RSAKey.generate_key(2048, {"kid": "third"})).signed
        for _ in range(5):
            assert (await back(client, town)).status_code == 401
        assert town.issuer.num_asked <= asked + 1


async def test_keys_that_do_not_come_are_asked_for_by_one_visit_and_hold_up_none() -> None:
    """While they are away twenty who come back ask for them once; who begins waits for nothing."""
    fake, clock = FakeIssuer(are_keys_away=True), Clock()
    issuer = Issuer(OPTIONS, clock=clock, transport=fake.transport)

    async def come_back() -> Identity:
        address = await issuer.address(state="s", nonce="n", verifier="v" * 43)
        [code] = parse_qs(urlsplit(fake.visit(address)).query)["code"]
        return await issuer.identity(code, ISSUER, nonce="n", verifier="v" * 43)

    visits = await asyncio.gather(*(come_back() for _ in range(20)), return_exceptions=True)
    assert {type(visit) for visit in visits} == {IssuerUnavailable}
    assert fake.num_keys_asked == 1
    fake.are_keys_away = False
    with pytest.raises(IssuerUnavailable):
        await come_back()
    clock.ahead_s += 3
    fake.before_keys = asyncio.Event()
    late = asyncio.create_task(come_back())
    while fake.num_keys_asked < 2:
        await asyncio.sleep(0)
    await issuer.address(state="s", nonce="n", verifier="v" * 43)
    assert not late.done()
    fake.before_keys.set()
    assert (await late).subject == MINE


async def test_owners_invite_by_their_page(store: Store) -> None:
    """A subject is given as a user is made, shown, and changed; the last owner keeps a way in."""
    town = await open_town(store)
    await town.pages.add("ann")
    async with guest(town) as client:
        await sign_in(client, "ann")
        token = {"form_token": await form_token(client)}
        made = {"name": "bob", "role": "owner", "subject": MINE}
        assert (await client.post("/admin/users", data=token | made)).status_code == 200
        page = (await client.get("/admin/users")).text
        assert f'value="{MINE}"' in page
        assert "no password yet" not in page
        version = str(next(one.version for one in await _users(town) if one.name == "bob"))
        role = token | {"role": "owner", "subject": "", "version": version}
        assert (await client.post("/admin/users/bob", data=role)).status_code == 303
    assert [one.subject for one in await _users(town)] == [None, None]
    await town.pages.users.update(town.pages.owner, SYSTEM, "bob", subject=MINE)
    await town.pages.users.remove(town.pages.owner, SYSTEM, "ann")
    with pytest.raises(InvalidRequest, match="last owner"):
        await town.pages.users.update(town.pages.owner, SYSTEM, "bob", subject="")


async def _users(town: Town) -> Sequence[User]:
    return (await town.pages.users.page(town.pages.owner, PageRequest(9))).data
