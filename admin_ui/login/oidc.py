"""Signing in at another issuer: the way there, and the way back.

The way back is an address that other sites send browsers to, with whatever they like: what is
believed is the visit that this browser began (`gateway.services.sign_in.visits`). Its cookie goes
with the first answer, be that a good one or not.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from admin_ui.guards.cookies import SessionCookie
from admin_ui.login.places import place_after
from admin_ui.login.sign_in import SignInDesk, caller_of, login_fields
from admin_ui.pages import Pages
from gateway.errors import IssuerUnavailable, LoginFailed, NotFound
from gateway.services.sign_in import VISIT_S, Sessions, SignIn, Visits

BEGIN, BACK = "/admin/oidc/begin", "/admin/oidc/back"
_MAX_PARAMS = 16


def oidc_routes(
    sign_in: SignIn, sessions: Sessions, visits: Visits | None, pages: Pages, public_url: str | None
) -> list[Route]:
    """Declare the routes; without `visits` there is nothing at them."""
    desk = _Desk(sign_in, sessions, visits, pages, public_url)
    return [
        Route(BEGIN, desk.begin, methods=["GET"]),
        Route(BACK, desk.back, methods=["GET"]),
    ]


class _Desk(SignInDesk):
    def __init__(
        self,
        sign_in: SignIn,
        sessions: Sessions,
        visits: Visits | None,
        pages: Pages,
        public_url: str | None,
    ) -> None:
        super().__init__(sign_in, sessions, pages, issuer=None if visits is None else visits.name)
        self._visits = visits
        self._public_url = public_url

    async def begin(self, request: Request) -> Response:
        place = place_after(request.query_params.get("next", ""), "")
        try:
            departure = await self._open.begin()
        except IssuerUnavailable as exc:
            return self._refused(request, place, exc)
        response = RedirectResponse(departure.address, 303)
        kept = f"{departure.visit}~{quote(place, safe='')}"
        self._cookie(request).give(response, kept, life_s=int(VISIT_S))
        return response

    async def back(self, request: Request) -> Response:
        visits, cookie = self._open, self._cookie(request)
        visit, _, kept = cookie.read(request.scope).partition("~")
        place = place_after(unquote(kept), "")
        params = request.query_params.multi_items()
        answer = dict(params)
        try:
            if len(answer) != len(params) or len(params) > _MAX_PARAMS:
                raise LoginFailed("That sign-in is over. Begin it again.")
            made = await visits.end(visit, answer, caller_of(request))
        except (LoginFailed, IssuerUnavailable) as exc:
            response = self._refused(request, place, exc)
        else:
            response = await self._begun(request, made, place)
        cookie.take_back(response)
        return response

    def _refused(
        self, request: Request, place: str, exc: LoginFailed | IssuerUnavailable
    ) -> Response:
        fields = login_fields(next=place, issuer=self.issuer, error=exc.message)
        return self.refused(request, "login/login.html", fields, exc)

    @property
    def _open(self) -> Visits:
        if self._visits is None:
            raise NotFound("Nobody signs in that way here.")
        return self._visits

    def _cookie(self, request: Request) -> SessionCookie:
        return SessionCookie(request.scope, self._public_url, what="visit")
