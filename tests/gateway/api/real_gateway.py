"""The applications that a server serves, over a real store and a simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
from starlette.applications import Starlette
from starlette.routing import Route

from admin_ui.guards import SecurityHeaders
from gateway.api.admin.routing import AdminOnly
from gateway.api.request_id import RequestId
from gateway.app.gateway import Gateway, open_gateway
from gateway.domain.admin import AdminRole
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class RealGateway:
    """Hold a running gateway and an owner's client of its admin API."""

    gateway: Gateway
    owner: httpx.AsyncClient

    @property
    def routes(self) -> list[tuple[str, Route]]:
        """Return the routes of the admin API with their methods, in the order of their paths."""
        inner = cast(RequestId, cast(SecurityHeaders, self.gateway.admin)._app)
        app = cast(Starlette, inner._app)
        found = [route for route in app.routes if isinstance(route, Route)]
        pairs = [(method, route) for route in found for method in sorted(route.methods or ())]
        administers = (pair for pair in pairs if isinstance(pair[1].app, AdminOnly))
        return sorted(
            (pair for pair in administers if pair[0] != "HEAD"),
            key=lambda pair: (pair[1].path, pair[0]),
        )

    def admin(self, token: str, address: str = "127.0.0.1") -> httpx.AsyncClient:
        """Make a client of the admin API; it holds nothing that must be closed."""
        return _client(self.gateway, token, address)

    async def token(self, role: AdminRole, tenant: str | None = None) -> str:
        """Have the owner issue a token of a role."""
        body = {"name": "test", "role": role.value, "tenant": tenant}
        made = await self.owner.post("/admin/v1/tokens", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    async def tokens(self, tenant: str) -> Mapping[AdminRole, str]:
        """Issue a token of each role, those of a tenant for `tenant`."""
        return {
            role: await self.token(role, tenant if role.is_of_tenant else None)
            for role in AdminRole
        }


@asynccontextmanager
async def real_gateway(settings: Settings) -> AsyncIterator[RealGateway]:
    """Open what a server serves; no other gateway may have to come back to its counters."""
    of_tests: dict[str, Any] = {"engine": "simulated", "quota_build_s": 0.0}
    if "read_rpm" not in settings.model_fields_set:
        # Most ask for more in a minute than a tenant's people may.
        of_tests["read_rpm"] = 60_000
    alone = settings.model_copy(update=of_tests)
    async with open_gateway(alone) as gateway:
        assert gateway.first_start is not None
        yield RealGateway(gateway, _client(gateway, gateway.first_start.admin_token))


def _client(gateway: Gateway, token: str, address: str = "127.0.0.1") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(
            gateway.admin, raise_app_exceptions=False, client=(address, 1)
        ),
        base_url="http://admin",
        headers={"authorization": f"Bearer {token}"},
    )
