"""Who may sign in, for owners: users, their roles, the links that they set passwords by."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.screens import Form, read_form, screen, see
from gateway.api.admin.routing import OWNERS, actor_of, admin_of
from gateway.api.admin.users import link_url
from gateway.api.errors import classify
from gateway.domain.admin import AdminRole
from gateway.domain.page import PageRequest
from gateway.domain.sign_in import User
from gateway.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    VersionConflict,
)
from gateway.services.admin import UserService
from gateway.services.admin.keys import uuid_of

USERS = "/admin/users"
_MAX_ROWS = 100
_REFUSED = (InvalidRequest, NotFound, Conflict, PermissionDenied)


def user_screens(
    users: UserService,
    pages: Pages,
    public_url: str | None = None,
    *,
    issuer: str | None = None,
) -> list[Route]:
    """Declare the routes; `issuer` is what people call where else they may sign in."""
    desk = _Desk(users, pages, public_url, issuer)
    return [
        screen(USERS, desk.show, allows=OWNERS),
        screen(USERS, desk.create, method="POST", allows=OWNERS),
        screen(f"{USERS}/sessions", desk.end_session, method="POST", allows=OWNERS),
        screen(f"{USERS}/{{user}}", desk.update, method="POST", allows=OWNERS),
        screen(f"{USERS}/{{user}}/suspend", desk.suspend, method="POST", allows=OWNERS),
        screen(f"{USERS}/{{user}}/delete", desk.remove, method="POST", allows=OWNERS),
        screen(f"{USERS}/{{user}}/link", desk.reset, method="POST", allows=OWNERS),
    ]


class _Desk:
    def __init__(
        self, users: UserService, pages: Pages, public_url: str | None, issuer: str | None
    ) -> None:
        self._users = users
        self._issuer = issuer
        self._pages = pages
        self._public_url = public_url

    async def show(self, request: Request) -> Response:
        return await self._page(request)

    async def create(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            made = await self._users.create(
                admin_of(request),
                actor_of(request),
                name=form.text("name"),
                role=_role(form),
                tenant=form.optional("tenant"),
                subject=form.optional("subject"),
            )
        except _REFUSED as exc:
            return await self._page(request, typed=form.values(), exc=exc)
        return await self._page(request, made=made)

    async def update(self, request: Request) -> Response:
        form, name = await read_form(request), request.path_params["user"]
        try:
            await self._users.update(
                admin_of(request),
                actor_of(request),
                name,
                role=_role(form),
                tenant=form.optional("tenant"),
                subject=None if self._issuer is None else form.text("subject"),
                version=form.version(),
            )
        except _REFUSED as exc:
            return await self._page(request, exc=exc, of=name)
        return _back()

    async def suspend(self, request: Request) -> Response:
        form, name = await read_form(request), request.path_params["user"]
        try:
            await self._users.update(
                admin_of(request),
                actor_of(request),
                name,
                is_suspended=form.text("is_suspended") == "yes",
                version=form.version(),
            )
        except _REFUSED as exc:
            return await self._page(request, exc=exc, of=name)
        return _back()

    async def remove(self, request: Request) -> Response:
        name = request.path_params["user"]
        try:
            await self._users.remove(admin_of(request), actor_of(request), name)
        except _REFUSED as exc:
            return await self._page(request, exc=exc, of=name)
        return _back()

    async def reset(self, request: Request) -> Response:
        name = request.path_params["user"]
        try:
            made = await self._users.reset(admin_of(request), actor_of(request), name)
        except _REFUSED as exc:
            return await self._page(request, exc=exc, of=name)
        return await self._page(request, made=made)

    async def end_session(self, request: Request) -> Response:
        session_id = uuid_of((await read_form(request)).text("session"))
        if session_id is None:
            raise NotFound("There is no session of that id.", param="session")
        await self._users.end_session(actor_of(request), session_id)
        return _back()

    async def _page(
        self,
        request: Request,
        *,
        typed: dict[str, str] | None = None,
        exc: GatewayError | None = None,
        of: str = "",
        made: tuple[User, str] | None = None,
    ) -> Response:
        """Show everybody, with what became of a form: a link that is shown once, or a refusal."""
        asked = PageRequest(_MAX_ROWS)
        users = await self._users.page(admin_of(request), asked)
        sessions = await self._users.page_of_sessions(asked)
        fields: dict[str, Any] = {
            "users": users.data,
            "has_more": users.next is not None,
            "sessions": sessions.data,
            "roles": [role.value for role in AdminRole],
            "issuer": self._issuer,
            "subject_of": self._users.subject_of,
            "role_options": [(role.value, role.value) for role in AdminRole],
            "typed": typed or {},
            "errors": {} if exc is None or of else {exc.param or "name": exc.message},
            "refused": exc.message if exc is not None and of else "",
            "is_stale": isinstance(exc, VersionConflict),
            "of": of,
            "made": None if made is None else made[0],
            "link": "" if made is None else self._link(request, made[1]),
            "quoted": lambda name: quote(name, safe=""),
        }
        status = 200 if exc is None else classify(exc)[0]
        return self._pages.answer(request, "login/users.html", fields, status=status)

    def _link(self, request: Request, link: str) -> str:
        """Return a link's address: by the name that this page was reached by, which is ours."""
        own = f"{request.scope['scheme']}://{request.headers['host']}"
        return link_url(self._public_url or own, link)


def _role(form: Form) -> AdminRole:
    try:
        return AdminRole(form.text("role"))
    except ValueError:
        raise InvalidRequest("Choose a role.", param="role") from None


def _back() -> Response:
    return see(USERS)
