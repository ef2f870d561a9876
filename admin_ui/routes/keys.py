"""Keys: all of them, one, and the forms that make, change, rotate and end one.

A key's secret is in the answer to the form that made it, once: nothing keeps it, so there is no
page to come back to. The portal has the same screens for its tenant's keys alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.pages import Pages
from admin_ui.screens import (
    Form,
    Screen,
    Words,
    base_of,
    chosen,
    errors_of,
    listed,
    page_asked,
    read_form,
    screen,
    see,
)
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, TENANT_OWNERS, VIEWERS, actor_of, admin_of
from gateway.api.errors import classify
from gateway.domain import ApiKey, IssuedKey, Tier
from gateway.domain.admin import AdminRole
from gateway.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    VersionConflict,
)

LIVES: Final = (
    ("", "never"), ("86400", "in a day"), ("604800", "in a week"), ("2592000", "in 30 days"),
    ("7776000", "in 90 days"), ("31536000", "in a year"),
)  # fmt: skip
GRACES: Final = (
    ("0", "now"), ("3600", "in 1 hour"), ("86400", "in 24 hours"), ("604800", "in 7 days"),
)  # fmt: skip
_FAULTS: Final = (InvalidRequest, Conflict, NotFound, PermissionDenied)


def key_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the screens of all keys."""
    return KeyScreens(services, pages).routes("/admin/keys", reads=VIEWERS, changes=OPERATORS)


class KeyScreens:
    """Show and change the keys that who speaks may see; a path's `name` is whose new ones are."""

    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._keys = services.admin.keys
        self._pages = pages

    def routes(
        self,
        path: str,
        *,
        reads: Collection[AdminRole],
        changes: Collection[AdminRole],
        of: Callable[[Screen], Screen] = lambda endpoint: endpoint,
    ) -> list[Route]:
        """Declare the list, a key's page, and the forms; `of` wraps each."""
        of_new, of_one = f"{path}/new", f"{path}/{{kid}}"
        return [
            screen(path, of(self.page), allows=reads),
            screen(of_new, of(self.new), allows=changes),
            screen(of_new, of(self.create), method="POST", allows=changes),
            screen(of_one, of(self.show), allows=reads),
            screen(of_one, of(self.change), method="POST", allows=changes),
            screen(f"{of_one}/rotate", of(self.rotate), method="POST", allows=changes),
            screen(f"{of_one}/revoke", of(self.revoke), method="POST", allows=changes),
        ]

    async def page(self, request: Request) -> Response:
        params = chosen(request, "tenant")
        admin = admin_of(request)
        context: dict[str, Any] = {
            "params": params,
            "may_create": admin.role in TENANT_OWNERS,
            "listing": None,
            "of_tenant": admin.tenant_id is not None,
        }
        try:
            found = await self._keys.page(
                page_asked(request), tenant=params.get("tenant"), within=admin.tenant_id
            )
            context["listing"] = listed(request, found)
        except NotFound:
            pass  # there is no tenant of that name: the page says so
        return self._pages.answer(request, "keys.html", context)

    async def new(self, request: Request) -> Response:
        form = Form([("tenant", request.query_params.get("tenant", ""))])
        return self._form(request, form, Words())

    async def create(self, request: Request) -> Response:
        form = await read_form(request)
        tier = form.optional("max_tier")
        try:
            issued = await self._keys.create(
                actor_of(request),
                request.path_params.get("name", form.text("tenant")),
                name=form.text("name") or "default",
                expires_in_s=form.number("expires_in_s"),
                max_tier=None if tier is None else _tier(tier),
                models=_lines(form.text("models")),
                cidrs=_lines(form.text("cidrs")),
                allows_batch=form.is_checked("allows_batch"),
                within=admin_of(request).tenant_id,
            )
        except _FAULTS as exc:
            return self._form(request, form, errors_of(exc), status=classify(exc)[0])
        return self._issued(request, issued, "created")

    async def show(self, request: Request) -> Response:
        return await self._show(request)

    async def change(self, request: Request) -> Response:
        form = await read_form(request)
        kid, within = request.path_params["kid"], admin_of(request).tenant_id
        try:
            changes = _changes(form, await self._keys.get(kid, within=within))
            await self._keys.update(
                actor_of(request), kid, changes, version=form.version(), within=within
            )
        except VersionConflict as exc:
            return await self._show(request, form, conflict=exc.current)
        except _FAULTS as exc:
            return await self._show(request, form, errors_of(exc), status=classify(exc)[0])
        return see(f"{base_of(request)}/keys/{kid}", said="changed")

    async def rotate(self, request: Request) -> Response:
        form = await read_form(request)
        try:
            issued = await self._keys.rotate(
                actor_of(request),
                request.path_params["kid"],
                grace_s=form.number("grace_s") or 0.0,
                within=admin_of(request).tenant_id,
            )
        except (InvalidRequest, Conflict) as exc:
            return await self._show(request, None, _whole(exc), status=classify(exc)[0])
        return self._issued(request, issued, "rotated")

    async def revoke(self, request: Request) -> Response:
        kid = request.path_params["kid"]
        await self._keys.revoke(actor_of(request), kid, within=admin_of(request).tenant_id)
        return see(f"{base_of(request)}/keys/{kid}", said="revoked")

    async def _show(
        self,
        request: Request,
        form: Form | None = None,
        errors: Words | None = None,
        *,
        status: int = 200,
        conflict: Any = None,  # a key, as it is now
    ) -> Response:
        admin = admin_of(request)
        key = await self._keys.get(request.path_params["kid"], within=admin.tenant_id)
        lines: list[tuple[str, str]] = []
        if conflict is not None and form is not None:
            status, sent, there = 409, form.values(), _values(conflict)
            for name, value in there.items():
                if value != sent[name]:
                    lines += [("-", f"{name}: {value or 'none'}")]
                    lines += [("+", f"{name}: {sent[name] or 'none'}")]
        context = {
            "key": key,
            "values": Words(_values(key)) if form is None else form.values(),
            "errors": errors or Words(),
            "conflict": None if conflict is None else {"lines": lines, "by": None},
            "tiers": [tier.value for tier in Tier],
            "graces": GRACES,
            "may_change": admin.role in TENANT_OWNERS and key.status.value == "active",
            "of_tenant": admin.tenant_id is not None,
        }
        return self._pages.answer(request, "key.html", context, status=status)

    def _form(self, request: Request, form: Form, errors: Words, *, status: int = 200) -> Response:
        context = {
            "values": form.values(),
            "errors": errors,
            "tiers": [tier.value for tier in Tier],
            "lives": LIVES,
            "is_first": not form.values()["name"],
            "of_tenant": admin_of(request).tenant_id is not None,
        }
        return self._pages.answer(request, "key_new.html", context, status=status)

    def _issued(self, request: Request, issued: IssuedKey, what: str) -> Response:
        context = {
            "key": issued.key,
            "secret": issued.token,
            "what": what,
            "api": self._services.api or "http://127.0.0.1:8000/v1",
        }
        return self._pages.answer(request, "key_issued.html", context)


def _values(key: ApiKey) -> dict[str, str]:
    """Return what the fields of a key hold."""
    return {
        "name": key.name,
        "max_tier": key.max_tier.value,
        "models": "\n".join(key.models or ()),
        "cidrs": "\n".join(key.cidrs or ()),
        "allows_batch": "yes" if key.allows_batch else "",
    }


def _changes(form: Form, key: ApiKey) -> dict[str, object]:
    """Read what a form changes of a key: what an operator names is held to be an operator's."""
    sent = {name: "\n".join(form.text(name).splitlines()) for name in _READ}
    return {name: _READ[name](text) for name, text in sent.items() if text != _values(key)[name]}


def _lines(text: str) -> list[str] | None:
    """Read names, one a line or by commas; None where there is none."""
    return [one.strip() for one in text.replace(",", "\n").splitlines() if one.strip()] or None


def _tier(text: str) -> Tier:
    try:
        return Tier(text)
    except ValueError:
        raise InvalidRequest("There is no such class.", param="max_tier") from None


def _whole(exc: GatewayError) -> Words:
    return Words({"": exc.message})


_READ: Final[Mapping[str, Callable[[str], object]]] = {
    "name": str,
    "max_tier": _tier,
    "models": _lines,
    "cidrs": _lines,
    "allows_batch": bool,
}
