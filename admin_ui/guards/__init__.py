"""Who reaches a page, and from where: all that stands between the admin port and the UI.

From the outside in: headers on every answer of the port (`SecurityHeaders`); then the address as it
was sent, the host that it names, where a change comes from; then who is signed in, and the form's
token. Pure ASGI, so that an answer that goes on is not held. A page itself decides which roles may,
and nothing else.
"""

from __future__ import annotations

from starlette.types import ASGIApp

from admin_ui.guards.entrance import Entrance
from admin_ui.guards.headers import SecurityHeaders
from admin_ui.guards.session import SignedIn
from admin_ui.pages import Pages
from gateway.services.read_rate import ReadRate
from gateway.services.sign_in import Sessions

__all__ = ["SecurityHeaders", "guarded"]


def guarded(
    app: ASGIApp,
    sessions: Sessions,
    pages: Pages,
    *,
    public_url: str | None = None,
    reads: ReadRate | None = None,
) -> ASGIApp:
    """Wrap the UI; `public_url` is where browsers reach it, where that is not this machine.

    `reads` is how often a tenant's people may ask for anything.
    """
    return Entrance(SignedIn(app, sessions, pages, public_url, reads), pages, public_url)
