"""Who is signed in, and whether a change is meant: the session, and the token of its forms.

Whoever is not signed in is sent to sign in, and comes back to where they were. An answer that goes
on ends when its session does.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admin_ui.guards.cookies import SessionCookie
from admin_ui.guards.entrance import SAFE_METHODS, refusal_context
from admin_ui.guards.form_token import form_token
from admin_ui.pages import Pages
from gateway.api.access import check_address
from gateway.api.body import ClientGone
from gateway.api.errors import classify
from gateway.domain.sign_in import Session
from gateway.errors import GatewayError, PermissionDenied
from gateway.services.read_rate import ReadRate
from gateway.services.sign_in import Sessions, Watched

LOGIN: Final = "/admin/login"
PORTAL_LOGIN: Final = "/portal/login"
# Open to whoever is not signed in; each checks what it is sent by itself.
OPEN: Final = frozenset({LOGIN, PORTAL_LOGIN, "/admin/password"})
_OPEN_BELOW: Final = ("/admin/static/", "/admin/oidc/")


class SignedIn:
    """Let through who is signed in, with `admin`, `session` and `form_token` in the state."""

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        pages: Pages,
        public_url: str | None,
        reads: ReadRate | None = None,
    ) -> None:
        """`reads` is how often a tenant's people may ask for anything; without it, always."""
        self._app = app
        self._sessions = sessions
        self._pages = pages
        self._public_url = public_url
        self._reads = reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._pass(scope, receive, send)
        except ClientGone:
            return
        except GatewayError as exc:
            status, _ = classify(exc)
            context = refusal_context(status, "That is refused", exc.message)
            context["may_retry"] = status >= 500
            page = self._pages.answer(
                Request(scope, receive), "problem_bare.html", context, status=status
            )
            await page(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        state = scope.setdefault("state", {})
        cookie = state["session_cookie"] = SessionCookie(scope, self._public_url)
        is_change = scope["method"] not in SAFE_METHODS
        if path.startswith("/admin/static/"):
            await self._app(scope, receive, send)
            return
        text = cookie.read(scope)
        session = await self._sessions.find(text, is_change=is_change) if text else None
        if session is None:
            if path not in OPEN and not path.startswith(_OPEN_BELOW):
                await _sign_in_first(scope)(scope, receive, send)
                return
            await self._app(scope, receive, send)
            return
        check_address(scope, session.admin.cidrs, session.admin.tenant_cidrs)
        if self._reads is not None and session.admin.tenant_id is not None:
            await self._reads.admit(session.admin.tenant_id)
        state.update(
            admin=session.admin, session=session, form_token=self._sessions.form_token(text)
        )
        if is_change and path not in OPEN:
            token, receive = await form_token(scope, self._held_to(text, receive))
            if not self._sessions.is_form_token(text, token):
                raise PermissionDenied("The form is not one of this session. Load its page anew.")
        await self._watched(session, scope, receive, send)

    def _held_to(self, text: str, receive: Receive) -> Receive:
        """Ask again who is signed in once a body has ended: it may come as slowly as one likes."""

        is_over = False

        async def receive_held() -> Message:
            nonlocal is_over
            # Whoever reads on after that has the same answer, and waits for nothing.
            message = {} if is_over else await receive()
            is_end = message.get("type") == "http.request" and not message.get("more_body", False)
            if is_end and await self._sessions.find(text, is_change=True) is None:
                is_over = True
            if is_over:
                raise PermissionDenied("Your session has ended. Sign in again.")
            return message

        return receive_held

    async def _watched(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        with self._sessions.watching(session) as watched:
            scope["state"]["watched"] = watched
            answer = _Answer(send, watched)
            try:
                await self._app(scope, receive, answer)
            except Exception:
                if not answer.is_cut:
                    raise


class _Answer:
    """Send an answer on until its session is over; it ends there, and who makes it is told."""

    def __init__(self, send: Send, watched: Watched) -> None:
        self._send = send
        self._watched = watched
        self.is_cut = False

    async def __call__(self, message: Message) -> None:
        is_rest = message["type"] == "http.response.body" and message.get("more_body", False)
        if is_rest and self._watched.is_over:
            if not self.is_cut:
                self.is_cut = True
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            raise OSError("the session is over")
        await self._send(message)


def _sign_in_first(scope: Scope) -> Response:
    """Send a page's reader to sign in; tell a script, which would show that page in a place."""
    path: str = scope["path"]
    headers = dict(scope["headers"])
    login = PORTAL_LOGIN if path.startswith("/portal") else LOGIN
    if b"hx-request" in headers:
        return Response(status_code=401, headers={"hx-redirect": login})
    if b"text/event-stream" in headers.get(b"accept", b""):
        return Response(status_code=401)
    if scope["method"] in SAFE_METHODS and path not in ("/admin", "/portal"):
        query = scope.get("query_string", b"").decode("latin-1")
        here = path + (f"?{query}" if query else "")
        login += f"?next={quote(here, safe='/')}"
    return RedirectResponse(login, 303)
