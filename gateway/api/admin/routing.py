"""What the routes of the admin API, `/admin/v1`, share: who may, bodies, answers, pages.

It listens on a port of its own. A route names the roles that it is open to; a route that names
none is open to nobody. The credential is checked before the body is read, and no endpoint runs
without an `Admin`. Who is bound to a tenant gets, for what belongs to another, the answer for what
is not there.

Lists are `{"data": [...], "has_more", "next"}`: `?limit=` rows, and `?after=` with the `next` of
the page before for those that follow it. Times are RFC 3339 in UTC. What has a `version` shows it;
a change that names one, in its body or as `If-Match`, is made to that version or not at all.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.access import check_address, credential
from gateway.api.body import ClientGone, read_body
from gateway.domain.admin import Actor, Admin, AdminRole
from gateway.domain.page import Cursor, Page, PageRequest
from gateway.errors import InvalidRequest, PermissionDenied, VersionConflict

MAX_ADMIN_BODY_BYTES: Final = 1 << 20
PAGE_ROWS, PAGE_ROWS_MAX = 100, 1000

OWNERS: Final = frozenset({AdminRole.OWNER})
OPERATORS: Final = OWNERS | {AdminRole.OPERATOR}
VIEWERS: Final = OPERATORS | {AdminRole.VIEWER}
# Who changes what a tenant may itself: its keys.
TENANT_OWNERS: Final = OPERATORS | {AdminRole.TENANT_OWNER}
EVERYONE: Final = frozenset(AdminRole)

T = TypeVar("T")

AdminEndpoint = Callable[[Request], Awaitable[Response]]


class AuthenticatesAdmins(Protocol):
    async def authenticate(
        self, text: str, *, from_memory: bool = False, is_change: bool = False, reads: int = 1
    ) -> Admin: ...


def admin_route(
    path: str,
    method: str,
    endpoint: AdminEndpoint,
    auth: AuthenticatesAdmins,
    *,
    allows: Collection[AdminRole] = (),
    from_memory: bool = False,
    reads: int = 1,
) -> Route:
    """Declare a route that admins of these roles open; `path` is under `/admin/v1`.

    `from_memory` is for what is read while the store is silent: metrics, and nothing that writes.
    `reads` is what it counts of a tenant's reads.
    """
    assert not from_memory or method == "GET", "what is remembered may not change anything"
    admin_only = AdminOnly(
        endpoint, auth, allows, is_change=method != "GET", from_memory=from_memory, reads=reads
    )
    return Route(f"/admin/v1{path}", admin_only, methods=[method])


class AdminOnly:
    """Answer admins of some roles with `endpoint`, and everyone else with a refusal.

    Raises: `AuthenticationFailed`; `PermissionDenied`: another role, or another network.
    """

    def __init__(
        self,
        endpoint: AdminEndpoint,
        auth: AuthenticatesAdmins,
        allows: Collection[AdminRole],
        *,
        is_change: bool = True,
        from_memory: bool = False,
        reads: int = 1,
    ) -> None:
        self._endpoint = endpoint
        self._auth = auth
        self._is_change = is_change
        self._from_memory = from_memory
        self._reads = reads
        self.allows = frozenset(allows)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admin = await self._auth.authenticate(
            credential(scope),
            from_memory=self._from_memory,
            is_change=self._is_change,
            reads=self._reads,
        )
        check_address(scope, admin.cidrs, admin.tenant_cidrs)
        if admin.role not in self.allows:
            raise PermissionDenied(f"The role {admin.role.value} may not do that.")
        scope.setdefault("state", {})["admin"] = admin
        try:
            response = await self._endpoint(Request(scope, receive))
        except ClientGone:
            return
        await response(scope, receive, send)


def admin_of(request: Request) -> Admin:
    """Return who speaks."""
    admin = request.scope["state"]["admin"]
    assert isinstance(admin, Admin), "AdminOnly put it there"
    return admin


def actor_of(request: Request) -> Actor:
    """Return who speaks, from where, in which request, for the audit log."""
    admin = admin_of(request)
    client = request.scope.get("client")
    return Actor(
        name=admin.name,
        role=admin.role.value,
        ip=None if client is None else client[0],
        request_id=request.scope["state"].get("request_id"),
    )


async def admin_body(request: Request) -> bytes:
    """Read a body. Raises: `BodyTooLarge`, `ClientGone`."""
    return await read_body(request.scope, request.receive, max_bytes=MAX_ADMIN_BODY_BYTES)


def admin_answer(view: Any, status: int = 200) -> Response:  # whatever msgspec can encode
    """Answer with JSON that no cache keeps: it may show a token."""
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(view), status, headers, media_type="application/json")


def query(request: Request, *names: str) -> dict[str, str]:
    """Return the query parameters. Raises: `InvalidRequest`: one not among `names`, or twice."""
    given = request.query_params.multi_items()
    known: dict[str, str] = {}
    for name, value in given:
        if name not in names:
            raise InvalidRequest(f"Unknown query parameter '{name}'.", param=name)
        if name in known:
            raise InvalidRequest(f"'{name}' is given more than once.", param=name)
        known[name] = value
    return known


def page_query(request: Request, *names: str) -> tuple[PageRequest, dict[str, str]]:
    """Return which page is asked for, and the parameters of these names.

    Who is bound to a tenant gets shorter pages: it may write long texts into its own records, and
    ask for them as often as it may read.
    Raises: `InvalidRequest`: a limit or cursor that is none, an unknown parameter.
    """
    params = query(request, "limit", "after", *names)
    text, after = params.pop("limit", str(PAGE_ROWS)), params.pop("after", None)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= PAGE_ROWS_MAX):
        raise InvalidRequest(f"'limit' must be 1 to {PAGE_ROWS_MAX}.", param="limit")
    limit = int(text) if admin_of(request).tenant_id is None else min(int(text), PAGE_ROWS)
    return PageRequest(limit, None if after is None else read_cursor(after)), params


def page_answer(page: Page[T], view: Callable[[T], Any]) -> Response:  # whatever msgspec encodes
    """Answer with one page of a list."""
    return admin_answer(
        {
            "data": [view(one) for one in page.data],
            "has_more": page.next is not None,
            "next": None if page.next is None else write_cursor(page.next),
        }
    )


def wanted_version(request: Request, named: int | None = None) -> int | None:
    """Return the version that a change is made to, from the body or `If-Match: "3"`.

    Raises: `InvalidRequest`: the header is no version, or not the body's.
    """
    header = request.headers.get("if-match")
    if header is None or header.strip() == "*":
        return named
    text = header.strip().strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest("'If-Match' must be a version, as \"3\".", param="if-match")
    if named not in (None, int(text)):
        raise InvalidRequest("'If-Match' and 'version' differ; send one.", param="version")
    return int(text)


@contextmanager
def conflicts_shown(view: Callable[[Any], Any], body: bytes = b"null") -> Iterator[None]:
    """Show both sides of a `VersionConflict`: what is there, through `view`, and what was sent."""
    try:
        yield
    except VersionConflict as exc:
        raise VersionConflict(view(exc.current), msgspec.Raw(body)) from None


def named_fields(body: msgspec.Struct, *without: str) -> dict[str, Any]:
    """Return the fields of a body that were sent, but those that are no change."""
    fields = msgspec.structs.asdict(body)
    return {
        name: value
        for name, value in fields.items()
        if value is not msgspec.UNSET and name not in without
    }


def write_cursor(cursor: Cursor) -> str:
    """Write where a page ended, for an address."""
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=").decode()


def read_cursor(text: str) -> Cursor:
    """Read what `write_cursor` wrote. Raises: `InvalidRequest`."""
    try:
        padded = text + "=" * (-len(text) % 4)
        raw = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=Cursor)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise InvalidRequest(
            "'after' must be a 'next' that this list gave.", param="after"
        ) from None
