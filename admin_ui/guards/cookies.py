"""The cookies of a session and of a visit: where one may go is in its name, which browsers hold to.

`__Host-` says: set by this host itself, over TLS, for all of it and no other. Over plain HTTP,
which is for this machine, there is no such cookie; there the port is in its name, as cookies know
none and another server of the same machine has its own.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import Scope

from admin_ui.guards.entrance import sent


class SessionCookie:
    """Read, set and take back a cookie of one request's, by default that of its session."""

    def __init__(self, scope: Scope, public_url: str | None, *, what: str = "session") -> None:
        host = sent(scope, b"host")
        public = urlsplit(public_url or "")
        self.is_secure = scope.get("scheme") == "https" or (
            public.scheme == "https" and public.netloc == host
        )
        port = host.rpartition(":")[2]
        self.name = f"__Host-sluice_{what}"
        if not self.is_secure:
            self.name = f"sluice_{what}_{port if port.isdigit() else 80}"

    def read(self, scope: Scope) -> str:
        """Return what the browser sent; "" for nothing, or for two that differ."""
        wanted, values = f"{self.name}=", set()
        for key, value in scope["headers"]:
            if key == b"cookie":
                for part in value.decode("latin-1").split(";"):
                    if part.strip().startswith(wanted):
                        values.add(part.strip()[len(wanted) :])
        return values.pop() if len(values) == 1 else ""

    def give(self, response: Response, text: str, *, life_s: int | None = None) -> None:
        response.set_cookie(
            self.name,
            text,
            max_age=life_s,
            path="/",
            secure=self.is_secure,
            httponly=True,
            samesite="lax",
        )

    def take_back(self, response: Response) -> None:
        response.delete_cookie(
            self.name, path="/", secure=self.is_secure, httponly=True, samesite="lax"
        )
