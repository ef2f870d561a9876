"""What stands between a listener and an application: the same port, whatever the phase.

A listener opens before its application is there and closes after it has stopped taking work.
While the process starts, and when it is on its way out, everything but the probes gets a 503
that says so; a load of minutes or a drain is then never a refused connection. Requests keep the
application that they came to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.health import Health
from gateway.api.public import with_errors
from gateway.errors import Overloaded

# In a request's state: what sends the rest of its answer once that has begun.
REST: Final = "rest_of_answer"
_STARTING_RETRY_S: Final = 5.0


class Front:
    """Pass requests on to `app`, and count those under way.

    What is written to a client that has gone is dropped, as uvicorn does once it knows. With
    `closing` set, every answer that begins says `Connection: close`, so that a client's next
    request goes where the balancer sends it now. Pages of `cors_origins` may read refusals.
    """

    def __init__(self, health: Health, *, cors_origins: Sequence[str] = ()) -> None:
        self._health = health
        self._cors_origins = cors_origins
        self.app = self._only_probes(_refuse_early)
        self.closing = False
        self.num_requests = 0

    def refuse(self) -> None:
        """Answer what comes from now on, but probes, with a 503 of code `shutting_down`."""
        self.app = self._only_probes(_refuse_late)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_gone = False

        async def send_last(message: Message) -> None:
            nonlocal is_gone
            if self.closing and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            try:
                await send(message)
            except OSError:
                is_gone = True
            except RuntimeError as exc:
                # uvloop's answer to a write on a transport that its client has just closed.
                if not str(exc).startswith("unable to perform operation on"):
                    raise
                is_gone = True

        self.num_requests += 1
        state = scope.setdefault("state", {})
        state[REST] = send_last
        try:
            await self.app(scope, receive, send_last)
        finally:
            self.num_requests -= 1
            # A circle through the server's own object: all of a request would be garbage.
            state.pop(REST, None)
        # Until uvicorn knows as well, it would call an answer that was cut off our bug.
        while is_gone and (await receive())["type"] != "http.disconnect":
            pass

    def _only_probes(self, refuse: ASGIApp) -> ASGIApp:
        routes = [*self._health.routes(), Route("/{path:path}", _Endpoint(refuse))]
        return with_errors(routes, cors_origins=self._cors_origins)


class _Endpoint:
    """Take every method: Starlette gives a plain function GET alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _refuse_early(scope: Scope, receive: Receive, send: Send) -> None:
    raise Overloaded("The server is starting.", code="starting", retry_after_s=_STARTING_RETRY_S)


async def _refuse_late(scope: Scope, receive: Receive, send: Send) -> None:
    raise Overloaded("The server is shutting down.", code="shutting_down", retry_after_s=1)
