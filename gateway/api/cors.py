"""Which web pages may read this API's answers from a browser: those that a setting names.

Keys come in a header that a page has to know, never in a cookie, so credentials are not allowed for
any origin. Refusals carry the headers as well, or a page could not tell why it was refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

# What a page may read of an answer's head beside what every page may.
EXPOSED: Final = (
    "x-request-id",
    "request-id",
    "traceparent",
    *(
        name
        for what in ("requests", "tokens")
        for part in ("limit", "remaining", "reset")
        for name in (f"x-ratelimit-{part}-{what}", f"anthropic-ratelimit-{what}-{part}")
    ),
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-sluice-degraded",
    "x-sluice-ignored",
    "x-sluice-promise",
    "idempotent-replayed",
    "warning",
    "www-authenticate",
)
_MAX_AGE_S: Final = 600


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages of `origins` read what `app` answers; without any, `app` is returned as it is.

    A preflight is answered here, so it needs no key.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=tuple(origins),
        allow_methods=("GET", "POST", "DELETE"),
        # SDKs send headers of their own, and more with each version.
        allow_headers=("*",),
        allow_credentials=False,
        expose_headers=EXPOSED,
        max_age=_MAX_AGE_S,
    )
