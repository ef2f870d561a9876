"""`/livez`, `/readyz` (also `/health`, `/ping`) and `/startupz`: for supervisors and balancers.

Each is 200, or 503 with one word: the first part that is not well. That is all the public port
says. On the admin port the same paths answer with every part, what is the matter and for how
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.api.access import public
from gateway.services.health import Part, Probes


class Health:
    """Answer probes in a word."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes

    async def live(self, request: Request) -> Response:
        return self._answer(self._probes.live())

    async def ready(self, request: Request) -> Response:
        return self._answer(self._probes.ready())

    async def started(self, request: Request) -> Response:
        return self._answer(self._probes.started())

    def routes(self) -> list[Route]:
        """Declare the routes, open to anybody; vLLM's clients look at the last two."""
        return [
            public("/livez", self.live),
            public("/readyz", self.ready),
            public("/startupz", self.started),
            public("/health", self.ready),
            public("/ping", self.ready),
        ]

    def _answer(self, parts: Sequence[Part]) -> Response:
        ill = _first_ill(parts)
        return PlainTextResponse("ok\n") if ill is None else PlainTextResponse(f"{ill}\n", 503)


class DetailedHealth(Health):
    """Answer probes part by part: `{"status": "ok" or a word, "parts": [...]}`."""

    def _answer(self, parts: Sequence[Part]) -> Response:
        ill = _first_ill(parts)
        document = {"status": ill or "ok", "parts": [asdict(part) for part in parts]}
        return Response(
            msgspec.json.encode(document),
            200 if ill is None else 503,
            media_type="application/json",
        )


def _first_ill(parts: Sequence[Part]) -> str | None:
    return next((part.name for part in parts if not part.ok), None)
