"""Starlette's application with one layer of errors instead of two.

Starlette turns exceptions into answers in two layers, one for those that have a handler and one for
bugs, each of which stands in the way of every message of every answer. Here one does both, and
learns from the request's timeline whether an answer has begun.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request, Exception], Awaitable[Response]]


class Application(Starlette):
    """Route requests; each has a timeline in `scope["state"]`, which knows what was answered."""

    def build_middleware_stack(self) -> ASGIApp:
        handlers: Mapping[Any, Any] = self.exception_handlers
        return _Errors(self.router, handlers)


class _Errors:
    """Answer what `app` raises; `handlers` are by class, of which `Exception` is for bugs."""

    def __init__(self, app: ASGIApp, handlers: Mapping[type[Exception], Handler]) -> None:
        self._app = app
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as exc:
            kind = next(kind for kind in type(exc).__mro__ if kind in self._handlers)
            is_answered = scope["state"]["timeline"].status != 0
            if not is_answered:
                answer = await self._handlers[kind](Request(scope), exc)
                if kind is Exception:
                    # As the server is about to do: who is not told sends the next request on it.
                    answer.headers["connection"] = "close"
                await answer(scope, receive, send)
            if is_answered or kind is Exception:
                # The server logs it and ends the connection.
                raise
            # Some errors are raised again and again, and each time their traceback grows.
            exc.__traceback__ = None
