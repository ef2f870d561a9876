"""The admin API of the process's settings: `GET /admin/v1/config`.

It answers with every setting by its name, as it holds in this process, and with the context and the
sampling defaults that are served of each model. Secrets are not shown, and
of a store's URL the password is not; of other URLs the host alone is.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import VIEWERS, AuthenticatesAdmins, admin_answer, admin_route, query
from gateway.services.inference import ModelRegistry, ServedModel
from gateway.settings import Settings

HIDDEN: Final = "***"
_URLS: Final = ("database_url", "database_owner_url", "redis_url")


def config_route(settings: Settings, models: ModelRegistry, auth: AuthenticatesAdmins) -> Route:
    """Declare the route; mount it in an application that handles `GatewayError`."""
    view = shown_settings(settings) | {"served": {one.name: _served(one) for one in models}}

    async def show(request: Request) -> Response:
        query(request)
        return admin_answer(view)

    return admin_route("/config", "GET", show, auth, allows=VIEWERS)


def _served(model: ServedModel) -> dict[str, Any]:
    """Say its other names, what context came of the settings, and how requests are sampled."""
    info = model.info
    return {
        "aliases": list(model.aliases),
        "max_model_len": info.max_model_len,
        "model_max_len": info.model_max_len,
        "why_shorter": info.why_shorter,
        "sampling_defaults": asdict(model.sampling_defaults),
    }


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as JSON has them, with what is secret hidden."""
    shown = settings.model_dump(mode="json")
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            text = value.get_secret_value()
            shown[name] = _without_password(text) if name in _URLS else HIDDEN
        elif isinstance(value, str) and name.endswith("_url"):
            shown[name] = _place_of(value)
        elif isinstance(value, tuple) and any(isinstance(one, SecretStr) for one in value):
            shown[name] = [HIDDEN for _ in value]
    return shown


def _place_of(url: str) -> str:
    """Show where a URL leads and no more: of a webhook, the path is often what opens it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN}"


def _without_password(url: str) -> str:
    """Hide the password of a URL, and every option: libpq takes a password as one too."""
    try:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")
        user, colon, _ = place[0].partition(":")
    except ValueError:
        return HIDDEN
    netloc = f"{user}{colon}{HIDDEN if colon else ''}{place[1]}{place[2]}"
    return f"{parts.scheme}://{netloc}{parts.path}{'?' + HIDDEN if parts.query else ''}"
