"""What a request must look like before anybody asks who sent it.

- Its address reads in one way only (`gateway.http` refuses others on the socket; here again, as
  not every server that may carry the UI does).
- Its host is this machine's, by a name that cannot be anybody else's, or the one that operators
  named. A page of another site that has its own name resolve to this port (DNS rebinding) sends
  its own name, and an answer never has an address in it that the host header could have poisoned.
- A change comes from a page of this host: the browser says so itself in `Sec-Fetch-Site`, which no
  page can write, or else in `Origin`. What says neither is no browser of ours and is refused.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from admin_ui.pages import Pages
from gateway.errors import GatewayError, MalformedRequest, PermissionDenied
from gateway.http.request_head import check_target

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"(?P<name>[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class Entrance:
    """Let through what comes to a host of ours, and changes that come from its own pages."""

    def __init__(self, app: ASGIApp, pages: Pages, public_url: str | None) -> None:
        self._app = app
        self._pages = pages
        self._public_host = None if public_url is None else urlsplit(public_url).netloc

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except GatewayError as exc:
            status = 400 if isinstance(exc, MalformedRequest) else 403
            context = refusal_context(status, "That is refused", exc.message)
            page = self._pages.answer(
                Request(scope, receive), "problem_bare.html", context, status=status
            )
            await page(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        check_target(scope.get("raw_path") or scope["path"].encode())
        host = sent(scope, b"host")
        if not self._is_ours(host, scope):
            raise PermissionDenied(
                "This server is not known by that name. Operators name it in "
                "SLUICE_ADMIN_PUBLIC_URL."
            )
        if scope["method"] not in SAFE_METHODS and not _is_own_page(scope, host):
            raise PermissionDenied("That came from a page of another site.")

    def _is_ours(self, host: str, scope: Scope) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found["name"]
        if name in _LOOPBACK or host == self._public_host:
            return True
        # The address that the connection came to: a number is nobody's name to resolve.
        server = scope.get("server")
        own = "" if server is None else str(server[0])
        return name == (f"[{own}]" if ":" in own else own) and own[-1:].isdigit()


def sent(scope: Scope, name: bytes) -> str:
    """Return a header, small as hosts and origins are compared; "" where none or two came."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1").strip().lower() if len(values) == 1 else ""


def refusal_context(status: int, heading: str, message: str) -> dict[str, object]:
    """Return what a page that refuses says."""
    return {
        "status": status,
        "heading": heading,
        "message": message,
        "may_retry": False,
        "is_store": False,
    }


def _is_own_page(scope: Scope, host: str) -> bool:
    site = sent(scope, b"sec-fetch-site")
    if site:
        return site == "same-origin"
    # Which of the two schemes is not known behind a proxy; a host is one's own in either.
    return sent(scope, b"origin") in (f"https://{host}", f"http://{host}")
