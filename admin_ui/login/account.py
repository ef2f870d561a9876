"""One's own account: the sessions one has, and the password."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.login.sign_in import begun, caller_of
from admin_ui.pages import Pages
from admin_ui.screens import read_form, screen, see
from gateway.api.admin.routing import EVERYONE, actor_of, admin_of
from gateway.api.errors import classify
from gateway.domain.page import PageRequest
from gateway.domain.sign_in import Session
from gateway.errors import GatewayError, InvalidRequest, LoginFailed, NotFound
from gateway.services.admin.keys import uuid_of
from gateway.services.sign_in import Sessions, SignIn

ACCOUNT = "/admin/account"
_MAX_SESSIONS = 100


def account_routes(sign_in: SignIn, sessions: Sessions, pages: Pages) -> list[Route]:
    """Declare the routes."""
    desk = _Desk(sign_in, sessions, pages)
    return [
        screen(ACCOUNT, desk.show, allows=EVERYONE),
        screen(f"{ACCOUNT}/password", desk.change_password, method="POST", allows=EVERYONE),
        screen(f"{ACCOUNT}/sessions", desk.end, method="POST", allows=EVERYONE),
    ]


class _Desk:
    def __init__(self, sign_in: SignIn, sessions: Sessions, pages: Pages) -> None:
        self._sign_in = sign_in
        self._sessions = sessions
        self._pages = pages

    async def show(self, request: Request) -> Response:
        return await self._page(request)

    async def change_password(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            if form.text("password") != form.text("again"):
                raise InvalidRequest("The two are not the same.", param="again")
            made = await self._sign_in.change_password(
                _session_of(request), form.text("old"), form.text("password"), caller_of(request)
            )
        except (InvalidRequest, LoginFailed) as exc:
            return await self._page(request, exc)
        return begun(request, made, f"{ACCOUNT}?said=changed")

    async def end(self, request: Request) -> Response:
        session_id = uuid_of((await read_form(request)).text("session"))
        own = _session_of(request)
        if session_id is None:
            raise NotFound("There is no session of that id.", param="session")
        whose = own.user_id or own.key_id
        assert whose is not None, "a session is somebody's"
        await self._sessions.end_own(admin_of(request), actor_of(request), session_id, whose)
        return see("/admin/login" if session_id == own.id else ACCOUNT)

    async def _page(self, request: Request, exc: GatewayError | None = None) -> Response:
        own = _session_of(request)
        page = await self._sessions.page(PageRequest(_MAX_SESSIONS), of=own.user_id or own.key_id)
        param = None if exc is None else exc.param or "old"
        fields = {
            "own": own,
            "sessions": page.data,
            "errors": {} if exc is None else {param: exc.message},
            "said": request.query_params.get("said", ""),
        }
        status = 200 if exc is None else classify(exc)[0]
        return self._pages.answer(request, "login/account.html", fields, status=status)


def _session_of(request: Request) -> Session:
    session: Session = request.scope["state"]["session"]
    return session
