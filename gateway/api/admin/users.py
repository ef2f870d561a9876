"""The admin API of who may sign in to the pages: `/admin/v1/users`, and their sessions.

A user is named by the name in a path. What makes a user, or resets one, answers with a link that
sets the password once (`"link"`), and never again: its host is the one that
`SLUICE_ADMIN_PUBLIC_URL` names, or it has none, and whoever asked knows how they came here.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    OWNERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_of,
    admin_route,
    conflicts_shown,
    page_answer,
    page_query,
    wanted_version,
)
from gateway.api.body import JsonBody
from gateway.domain.admin import AdminRole
from gateway.domain.sign_in import Session, User
from gateway.errors import NotFound
from gateway.services.admin import UserService
from gateway.services.admin.keys import uuid_of

LINK_PATH = "/admin/password?link="


class NewUser(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: AdminRole
    tenant: str | None = None
    subject: str | None = None


class ChangedUser(msgspec.Struct, forbid_unknown_fields=True):
    role: AdminRole | None = None
    tenant: str | None = None
    is_suspended: bool | None = None
    subject: str | None = None
    version: int | None = None


class UserView(msgspec.Struct):
    id: str
    name: str
    role: AdminRole
    tenant: str | None
    has_password: bool
    subject: str | None
    version: int
    created_at: datetime
    suspended_at: datetime | None
    last_login_at: datetime | None


class LinkedUserView(UserView, kw_only=True):
    link: str


class SessionView(msgspec.Struct):
    id: str
    who: str
    role: AdminRole
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    address: str | None
    agent: str


def user_routes(
    users: UserService, auth: AuthenticatesAdmins, public_url: str | None = None
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    new_user, changed_user = JsonBody(NewUser), JsonBody(ChangedUser)

    def linked(user: User, link: str) -> LinkedUserView:
        return LinkedUserView(
            **msgspec.structs.asdict(user_view(user)), link=link_url(public_url, link)
        )

    async def page(request: Request) -> Response:
        asked, _ = page_query(request)
        return page_answer(await users.page(admin_of(request), asked), user_view)

    async def show(request: Request) -> Response:
        user = await users.get(admin_of(request), request.path_params["name"])
        return admin_answer(user_view(user))

    async def create(request: Request) -> Response:
        body = new_user.decode(await admin_body(request))
        made = await users.create(
            admin_of(request),
            actor_of(request),
            name=body.name,
            role=body.role,
            tenant=body.tenant,
            subject=body.subject,
        )
        return admin_answer(linked(*made), 201)

    async def update(request: Request) -> Response:
        raw = await admin_body(request)
        body = changed_user.decode(raw)
        with conflicts_shown(user_view, raw):
            user = await users.update(
                admin_of(request),
                actor_of(request),
                request.path_params["name"],
                role=body.role,
                tenant=body.tenant,
                is_suspended=body.is_suspended,
                subject=body.subject,
                version=wanted_version(request, body.version),
            )
        return admin_answer(user_view(user))

    async def remove(request: Request) -> Response:
        name = request.path_params["name"]
        return admin_answer(
            user_view(await users.remove(admin_of(request), actor_of(request), name))
        )

    async def reset(request: Request) -> Response:
        name = request.path_params["name"]
        return admin_answer(
            linked(*await users.reset(admin_of(request), actor_of(request), name)), 201
        )

    async def first_link(request: Request) -> Response:
        link = await users.first_link(actor_of(request))
        return admin_answer({"link": link_url(public_url, link)}, 201)

    async def sessions(request: Request) -> Response:
        asked, _ = page_query(request)
        return page_answer(await users.page_of_sessions(asked), session_view)

    async def end_session(request: Request) -> Response:
        session_id = uuid_of(request.path_params["id"])
        if session_id is None:
            raise NotFound("There is no session of that id.", param="session_id")
        return admin_answer(session_view(await users.end_session(actor_of(request), session_id)))

    return [
        admin_route("/users", "GET", page, auth, allows=OWNERS),
        admin_route("/users", "POST", create, auth, allows=OWNERS),
        admin_route("/users/{name}", "GET", show, auth, allows=OWNERS),
        admin_route("/users/{name}", "PATCH", update, auth, allows=OWNERS),
        admin_route("/users/{name}", "DELETE", remove, auth, allows=OWNERS),
        admin_route("/users/{name}/link", "POST", reset, auth, allows=OWNERS),
        admin_route("/first-link", "POST", first_link, auth, allows=OWNERS),
        admin_route("/sessions", "GET", sessions, auth, allows=OWNERS),
        admin_route("/sessions/{id}", "DELETE", end_session, auth, allows=OWNERS),
    ]


def link_url(public_url: str | None, link: str) -> str:
    """Return the address of a link; without a host where none is known."""
    return f"{(public_url or '').rstrip('/')}{LINK_PATH}{link}"


def user_view(user: User) -> UserView:
    """Show a user."""
    return UserView(
        id=str(user.id),
        name=user.name,
        role=user.role,
        tenant=user.tenant,
        has_password=user.has_password,
        subject=user.subject,
        version=user.version,
        created_at=user.created_at,
        suspended_at=user.suspended_at,
        last_login_at=user.last_login_at,
    )


def session_view(session: Session) -> SessionView:
    """Show a session; its id here is no secret."""
    return SessionView(
        id=str(session.id),
        who=session.admin.name,
        role=session.admin.role,
        created_at=session.created_at,
        seen_at=session.seen_at,
        expires_at=session.expires_at,
        address=session.address,
        agent=session.agent,
    )
