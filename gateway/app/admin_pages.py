"""Who reaches the pages: signing in, users, and the guards before all of them."""

from __future__ import annotations

from starlette.routing import Route
from starlette.types import ASGIApp

from admin_ui.app import Guard
from admin_ui.assets import Assets
from admin_ui.guards import guarded
from admin_ui.login import account_routes, oidc_routes, sign_in_routes, user_screens
from admin_ui.pages import About, Pages
from gateway.app.signing_in import SigningIn
from gateway.services.admin import UserService
from gateway.services.read_rate import ReadRate


def people_routes(
    people: SigningIn, users: UserService, pages: Pages, *, public_url: str | None = None
) -> list[Route]:
    """Declare the pages of signing in, of one's account and of users."""
    visits = people.visits
    issuer = None if visits is None else visits.name
    return [
        *sign_in_routes(people.sign_in, people.sessions, pages, issuer=issuer),
        *oidc_routes(people.sign_in, people.sessions, visits, pages, public_url),
        *account_routes(people.sign_in, people.sessions, pages),
        *user_screens(users, pages, public_url, issuer=issuer),
    ]


def guard_of(
    people: SigningIn, about: About, *, public_url: str | None = None, read_rpm: int = 600
) -> Guard:
    """Make what stands before the pages; it says on a page of its own what it refuses.

    A tenant's people may ask for twice as many answers as for pages of the portal, `read_rpm`: what
    is refused, not there or of their account is drawn as well, on everybody's event loop.
    """
    pages, reads = Pages(about, Assets()), ReadRate(2 * read_rpm)

    def guard(app: ASGIApp) -> ASGIApp:
        return guarded(app, people.sessions, pages, public_url=public_url, reads=reads)

    return guard
