"""What the screens share: who may open one, forms as they are sent, the way on after a change.

A screen's route names the roles that it is open to, as those of the admin API do; one that names
none is open to nobody. A guard below (`scope["state"]["admin"]`) has said who speaks, and has
refused a form without its session's token before a screen sees it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from admin_ui.navigation import ROOTS, root_of
from gateway.api.admin.routing import admin_of, read_cursor, write_cursor
from gateway.api.body import ClientGone, read_body
from gateway.domain.admin import AdminRole
from gateway.domain.page import Page, PageRequest
from gateway.errors import GatewayError, InvalidRequest, PermissionDenied

MAX_FORM_BYTES: Final = 256 << 10
ROWS: Final = 50
_MAX_FIELDS: Final = 1000

T = TypeVar("T")


class Words(dict[str, str]):
    """Hold texts by name; one that is not there is empty."""

    def __missing__(self, name: str) -> str:
        return ""


Screen = Callable[[Request], Awaitable[Response]]


def screen(
    path: str,
    endpoint: Screen,
    *,
    method: str = "GET",
    allows: Collection[AdminRole] = (),
) -> Route:
    """Declare a page, or a form's target, that admins of these roles open; `path` is whole."""
    return Route(path, OfRoles(endpoint, allows), methods=[method])


class OfRoles:
    """Answer admins of some roles with `endpoint`. Raises: `PermissionDenied`."""

    def __init__(self, endpoint: Screen, allows: Collection[AdminRole]) -> None:
        self._endpoint = endpoint
        self.allows = frozenset(allows)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        role = admin_of(request).role
        if role not in self.allows:
            raise PermissionDenied(f"The role {role.value} may not do that.")
        try:
            response = await self._endpoint(request)
        except ClientGone:
            return
        await response(scope, receive, send)


class Form:
    """Hold the fields of a form as they were sent, spaces around them taken off."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields
        self._first = dict(reversed(fields))

    def text(self, name: str, default: str = "") -> str:
        """Return a field, or `default` where it was not sent."""
        return self._first.get(name, default)

    def texts(self, name: str) -> list[str]:
        """Return all fields of that name."""
        return [value for field, value in self._fields if field == name]

    def optional(self, name: str) -> str | None:
        """Return a field, None where it is empty or was not sent."""
        return self._first.get(name) or None

    def number(self, name: str) -> float | None:
        """Read a number, None where the field is empty. Raises: `InvalidRequest`."""
        text = self._first.get(name, "")
        if not text:
            return None
        try:
            return float(text.replace(",", ""))
        except ValueError:
            raise InvalidRequest("A number is wanted here.", param=name) from None

    def integer(self, name: str) -> int | None:
        """Read a whole number, None where the field is empty. Raises: `InvalidRequest`."""
        text = self._first.get(name, "").replace(",", "").replace("_", "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise InvalidRequest("A whole number, 0 or more, is wanted here.", param=name)
        return int(text)

    def is_checked(self, name: str) -> bool:
        return name in self._first

    def version(self) -> int | None:
        """Read the version that a form was made of. Raises: `InvalidRequest`."""
        return self.integer("version")

    def values(self) -> Words:
        """Return what was sent, to be shown again."""
        return Words(self._first)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Hold a page of a list with the addresses of the first page and the next, None: this is it."""

    rows: Sequence[T]
    first: str | None
    next: str | None


def listed(request: Request, page: Page[T]) -> Listing[T]:
    """Put a page of a list under its addresses, which keep how it is filtered."""
    return Listing(
        page.data,
        address(request, after=None) if "after" in request.query_params else None,
        None if page.next is None else address(request, after=write_cursor(page.next)),
    )


def page_asked(request: Request, *, rows: int = ROWS) -> PageRequest:
    """Return which page of a list an address asks for. Raises: `InvalidRequest`: no cursor."""
    after = request.query_params.get("after")
    return PageRequest(rows, None if after is None else read_cursor(after))


def chosen(request: Request, *names: str) -> Words:
    """Return the filters of these names that an address has; an empty one chooses nothing.

    Raises: `InvalidRequest`: no text that anything here could have.
    """
    params = request.query_params
    found = Words({name: text for name in names if (text := params.get(name, "").strip())})
    for name, text in found.items():
        if not text.isprintable():
            raise InvalidRequest(f"'{name}' must be printable.", param=name)
    return found


def address(request: Request, **changes: str | None) -> str:
    """Return the present address with other values in its query; None leaves one out."""
    query = {name: value for name, value in request.query_params.items() if name != "said"}
    query |= {name: value for name, value in changes.items() if value is not None}
    kept = {name: value for name, value in query.items() if changes.get(name, "") is not None}
    return f"{request.url.path}?{urlencode(kept)}" if kept else request.url.path


def errors_of(exc: GatewayError) -> Words:
    """Return what is wrong with a form, by field; "" for what no field is to blame for."""
    return Words({exc.param or "": exc.message})


def base_of(request: Request) -> str:
    """Return below which root the pages of who speaks are."""
    return root_of(admin_of(request).role)


async def read_form(request: Request) -> Form:
    """Read a form's body. Raises: `BodyTooLarge`, `InvalidRequest`, `ClientGone`."""
    raw = await read_body(request.scope, request.receive, max_bytes=MAX_FORM_BYTES)
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError:
        raise InvalidRequest("The form cannot be read.") from None
    return Form([(name, value.strip()) for name, value in pairs])


def see(path: str, *, said: str | None = None) -> Response:
    """Send a browser on after a change, to a page that says what was done.

    `path` is ours or, where it was sent to us, made to be: never another site's.
    """
    place = path if _is_ours(path) else "/admin"
    if said is not None:
        place += f"{'&' if urlsplit(place).query else '?'}said={said}"
    return RedirectResponse(quote(place, safe="/?&=%:,+~.-_"), 303)


def _is_ours(path: str) -> bool:
    try:
        parts = urlsplit(path)
    except ValueError:
        return False
    return parts.path.startswith(ROOTS) and not (parts.scheme or parts.netloc)
