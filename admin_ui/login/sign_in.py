"""The pages of who is not signed in: by password, by a link that sets one, by a tenant's key."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from admin_ui.guards.cookies import SessionCookie
from admin_ui.guards.session import LOGIN, PORTAL_LOGIN
from admin_ui.login.places import place_after, place_of
from admin_ui.navigation import root_of
from admin_ui.pages import Pages
from admin_ui.screens import read_form
from gateway.api.admin.routing import actor_of
from gateway.api.body import ClientGone
from gateway.api.errors import classify
from gateway.domain.sign_in import Caller, Session
from gateway.errors import (
    GatewayError,
    InvalidRequest,
    LinkOver,
    LoginFailed,
    LoginLimited,
    NotFound,
)
from gateway.services.sign_in import SignedIn, SignIn
from gateway.services.sign_in.sessions import Sessions

PASSWORD = "/admin/password"
_FIRST_NAME = "admin"

Page = Callable[[Request], Awaitable[Response]]


def sign_in_routes(
    sign_in: SignIn, sessions: Sessions, pages: Pages, *, issuer: str | None = None
) -> list[Route]:
    """Declare the routes; the guard leaves those open that are not for who is signed in.

    `issuer` is what people call the one that they may sign in at instead.
    """
    desk = SignInDesk(sign_in, sessions, pages, issuer=issuer)
    return [
        Route(LOGIN, desk.show_login, methods=["GET"]),
        Route(LOGIN, _until_gone(desk.login), methods=["POST"]),
        Route(PORTAL_LOGIN, desk.show_portal, methods=["GET"]),
        Route(PORTAL_LOGIN, _until_gone(desk.login_by_key), methods=["POST"]),
        Route(PASSWORD, desk.show_link, methods=["GET"]),
        Route(PASSWORD, _until_gone(desk.follow_link), methods=["POST"]),
        Route("/admin/logout", desk.logout, methods=["POST"]),
        Route("/portal/logout", desk.logout, methods=["POST"]),
    ]


class SignInDesk:
    """Answer who is not signed in; `issuer` is where else they may sign in."""

    def __init__(
        self, sign_in: SignIn, sessions: Sessions, pages: Pages, *, issuer: str | None
    ) -> None:
        self._sign_in = sign_in
        self._sessions = sessions
        self._pages = pages
        self.issuer = issuer

    async def show_login(self, request: Request) -> Response:
        if (session := _session_of(request)) is not None:
            return RedirectResponse(root_of(session.admin.role), 303)
        asked = request.query_params.get("next", "")
        fields = login_fields(next=asked, issuer=self.issuer)
        return self._pages.answer(request, "login/login.html", fields)

    async def login(self, request: Request) -> Response:
        form = await read_form(request)
        name, place = form.text("name"), place_after(form.text("next"), "")
        try:
            made = await self._sign_in.with_password(
                name, form.text("password"), caller_of(request)
            )
        except LoginFailed as exc:
            fields = login_fields(next=place, name=name, error=_said(exc), issuer=self.issuer)
            return self.refused(request, "login/login.html", fields, exc)
        return await self._begun(request, made, place)

    async def show_portal(self, request: Request) -> Response:
        if (session := _session_of(request)) is not None:
            return RedirectResponse(root_of(session.admin.role), 303)
        asked = request.query_params.get("next", "")
        return self._pages.answer(request, "login/portal.html", login_fields(next=asked))

    async def login_by_key(self, request: Request) -> Response:
        form = await read_form(request)
        place = place_after(form.text("next"), "")
        try:
            made = await self._sign_in.with_key(form.text("key"), caller_of(request))
        except LoginFailed as exc:
            fields = login_fields(next=place, error=_said(exc))
            return self.refused(request, "login/portal.html", fields, exc)
        return await self._begun(request, made, place)

    async def show_link(self, request: Request) -> Response:
        link = request.query_params.get("link", "")
        try:
            name = await self._sign_in.link_is_for(link)
        except LinkOver as exc:
            return self.refused(request, "login/link_over.html", {"error": exc.message}, exc)
        return self._pages.answer(request, "login/password.html", _linked(link, name))

    async def follow_link(self, request: Request) -> Response:
        form = await read_form(request)
        link, name = form.text("link"), form.text("name")
        known = None
        try:
            known = await self._sign_in.link_is_for(link)
            password = form.text("password")
            if password != form.text("again"):
                raise InvalidRequest("The two are not the same.", param="again")
            made = await self._sign_in.with_link(link, name, password, caller_of(request))
        except LinkOver as exc:
            return self.refused(request, "login/link_over.html", {"error": exc.message}, exc)
        except (InvalidRequest, LoginFailed) as exc:
            fields = _linked(link, known, typed=name, errors={exc.param or "": _said(exc)})
            return self.refused(request, "login/password.html", fields, exc)
        return await self._begun(request, made, "")

    async def logout(self, request: Request) -> Response:
        session: Session = request.scope["state"]["session"]
        with contextlib.suppress(NotFound):
            await self._sessions.end(actor_of(request), session.id)
        is_portal = request.scope["path"].startswith("/portal")
        response = RedirectResponse(PORTAL_LOGIN if is_portal else LOGIN, 303)
        cookie_of(request).take_back(response)
        return response

    async def _begun(self, request: Request, made: SignedIn, place: str) -> Response:
        """Give the browser its new session; the one that it came with is over."""
        before = _session_of(request)
        if before is not None:
            with contextlib.suppress(NotFound):
                await self._sessions.end(actor_of(request), before.id)
        return begun(request, made, place_of(made.session.admin, place))

    def refused(
        self, request: Request, template: str, fields: dict[str, object], exc: GatewayError
    ) -> Response:
        """Answer with a page that says why not."""
        status, _ = classify(exc)
        response = self._pages.answer(request, template, fields, status=status)
        if exc.retry_after_s is not None:
            response.headers["retry-after"] = str(max(1, math.ceil(exc.retry_after_s)))
        return response


def begun(request: Request, made: SignedIn, place: str) -> Response:
    """Answer with a new session's cookie and the way on."""
    response = RedirectResponse(place, 303)
    cookie_of(request).give(response, made.text)
    return response


def caller_of(request: Request) -> Caller:
    """Return where a request comes from."""
    client = request.scope.get("client")
    return Caller(
        address=None if client is None else client[0],
        agent=request.headers.get("user-agent", ""),
        request_id=request.scope["state"].get("request_id"),
    )


def cookie_of(request: Request) -> SessionCookie:
    """Return the cookie of a request's session, as the guard knows it."""
    cookie: SessionCookie = request.scope["state"]["session_cookie"]
    return cookie


def _session_of(request: Request) -> Session | None:
    session: Session | None = request.scope["state"].get("session")
    return session


def _said(exc: GatewayError) -> str:
    if isinstance(exc, LoginLimited) and exc.retry_after_s is not None:
        return f"{exc.message} Try again in {max(1, math.ceil(exc.retry_after_s))} s."
    return exc.message


def login_fields(
    next: str = "", name: str = "", error: str = "", issuer: str | None = None
) -> dict[str, object]:
    """Return what the pages of signing in are told."""
    return {"next": next, "name": name, "error": error, "issuer": issuer}


def _linked(
    link: str,
    name: str | None,
    *,
    typed: str = _FIRST_NAME,
    errors: dict[str, str] | None = None,
) -> dict[str, object]:
    return {
        "link": link,
        "name": name or typed,
        "is_first": name is None,
        "errors": errors or {},
        "error": (errors or {}).get("", ""),
    }


def _until_gone(page: Page) -> Page:
    """Answer nobody where the client has left before its form was complete."""

    async def answered(request: Request) -> Response:
        try:
            return await page(request)
        except ClientGone:
            return Response(status_code=400)

    return answered
