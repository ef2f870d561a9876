"""Who may do what: every route of the real admin API, called with every role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.domain.admin import AdminRole
from gateway.settings import Settings
from tests.gateway.api.real_gateway import RealGateway, real_gateway

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).with_name("routes.golden")


@pytest.fixture
async def real(settings: Settings) -> AsyncIterator[RealGateway]:
    async with real_gateway(settings) as running:
        yield running


async def test_every_route_is_open_to_the_roles_of_the_golden_file(real: RealGateway) -> None:
    """A route that comes, goes or opens to another role fails here until the file says so.

    Each is called with a token of each role, for what is not there: a role that may gets past the
    guard, to a 404, a 400 or an answer; one that may not gets 403.
    """
    tokens = await real.tokens("acme")
    lines = []
    for method, route in real.routes:
        allowed = []
        path = _nothing(route.path)
        for role, token in tokens.items():
            answer = await real.admin(token).request(method, path, content=b"[")
            assert answer.status_code != 401
            assert answer.status_code < 500, answer.text
            if answer.status_code != 403:
                allowed.append(role.value)
            else:
                assert answer.json()["error"]["code"] == "permission_denied"
        lines.append(f"{method:6} {route.path:48} {' '.join(allowed)}".rstrip())
    assert "\n".join(lines) + "\n" == GOLDEN.read_text()


def test_the_golden_file_gives_each_role_its_due() -> None:
    """An owner may all, a viewer reads, no tenant's role touches what is not its own."""
    rows = [line.split() for line in GOLDEN.read_text().splitlines()]
    every = {(method, path): set(roles) for method, path, *roles in rows}
    for (method, path), roles in every.items():
        assert "owner" in roles
        of_owners = ("tokens", "users", "sessions", "first-link")
        is_of_owners = path.removeprefix("/admin/v1/").split("/")[0] in of_owners
        assert ("operator" in roles) != is_of_owners
        # A plan is a reading that takes a body.
        reads = method == "GET" or path == "/admin/v1/apply/plan"
        assert ("viewer" in roles) == (reads and not is_of_owners)
        if roles & {"tenant-owner", "tenant-viewer"}:
            parts = path.removeprefix("/admin/v1/").split("/")
            of_tenant = ("tenants", "keys", "audit", "usage", "requests")
            assert parts[0] in of_tenant or parts[1] in ("key", "tenant")
        if "tenant-viewer" in roles:
            assert method == "GET"
        if "tenant-owner" in roles and method != "GET":
            assert path.startswith(("/admin/v1/keys", "/admin/v1/quotas/key/"))


async def test_nothing_is_open_without_a_credential(real: RealGateway) -> None:
    """Every route of the golden file answers a stranger 401, whatever it is sent."""
    assert real.gateway.first_start is not None
    key = real.gateway.first_start.keys[0].token
    for number, (method, route) in enumerate(real.routes):
        for token in ("", "x", key):
            # One that fails as often as this would be told to wait.
            stranger = real.admin(token, f"10.0.0.{number}")
            answer = await stranger.request(method, _nothing(route.path), content=b"[")
            assert answer.status_code == 401, route.path


async def test_a_route_that_names_no_role_is_open_to_nobody(real: RealGateway) -> None:
    """The default is no."""
    from gateway.api.admin.routing import AdminOnly, admin_answer
    from gateway.domain.admin import Admin
    from gateway.errors import PermissionDenied

    class Anyone:
        async def authenticate(
            self, text: str, *, from_memory: bool = False, is_change: bool = False, reads: int = 1
        ) -> Admin:
            return Admin("ann", AdminRole.OWNER, real_id)

    async def endpoint(request: object) -> object:
        return admin_answer({})

    real_id = (await real.owner.get("/admin/v1/tenants")).json()["data"][0]["id"]
    guarded = AdminOnly(endpoint, Anyone(), ())  # type: ignore[arg-type]
    scope = {"type": "http", "headers": [(b"authorization", b"Bearer x")], "client": None}
    with pytest.raises(PermissionDenied):
        await guarded(scope, None, None)  # type: ignore[arg-type]


def _nothing(path: str) -> str:
    """Name something that is not there."""
    for param in ("{name}", "{key_id}", "{token_id}", "{id}", "{model:path}"):
        path = path.replace(param, "nothing")
    assert "{" not in path
    return path
