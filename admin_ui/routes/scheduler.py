"""The schedulers: what waits and runs, who gets what, and the policy, changed in two steps.

A change is shown as a diff first and made by a second form, which names the version that it was
shown beside: a change by somebody else meanwhile, at whatever gateway, is told, not undone. The way
back is a form too, and so is the way to the settings that each gateway has of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin_ui.audit_rows import audit_row, changes_of
from admin_ui.pages import Pages
from admin_ui.screens import Form, read_form, screen, see
from admin_ui.services import UiServices
from gateway.api.admin.routing import OPERATORS, VIEWERS, actor_of, admin_of
from gateway.domain.admin import AuditFilter, AuditRecord
from gateway.domain.page import PageRequest
from gateway.errors import InvalidRequest, VersionConflict
from scheduler.config import PRESETS
from scheduler.policies.registry import policy_names

MAX_TENANTS: Final = 50
_KIND: Final = "scheduler"
_NAMED: Final = ("policy", "preset")


def scheduler_routes(services: UiServices, pages: Pages) -> list[Route]:
    """Declare the page, its tables, and the two forms of a change."""
    scheduler = _Scheduler(services, pages)
    return [
        screen("/admin/scheduler", scheduler.show, allows=VIEWERS),
        screen("/admin/scheduler/now", scheduler.now, allows=VIEWERS),
        screen("/admin/scheduler/change", scheduler.preview, allows=OPERATORS),
        screen("/admin/scheduler/change", scheduler.change, method="POST", allows=OPERATORS),
    ]


class _Scheduler:
    def __init__(self, services: UiServices, pages: Pages) -> None:
        self._services = services
        self._pages = pages

    async def show(self, request: Request) -> Response:
        context = await self._now(request) | {
            "policies": policy_names(),
            "presets": tuple(PRESETS),
            "history": await self._history(),
            "may_change": admin_of(request).role in OPERATORS,
        }
        return self._pages.answer(request, "scheduler.html", context)

    async def now(self, request: Request) -> Response:
        return self._pages.answer(request, "scheduler_now.html", await self._now(request))

    async def preview(self, request: Request) -> Response:
        model, changes = _wanted(Form(request.query_params.multi_items()))
        context = self._previewed(model, changes)
        return self._pages.answer(request, "scheduler_change.html", context)

    async def change(self, request: Request) -> Response:
        form = await read_form(request)
        model, changes = _wanted(form)
        policies, actor = self._services.policies, actor_of(request)
        try:
            if changes is None:
                await policies.reset(actor, model=model, version=form.version())
            else:
                await policies.configure(actor, changes, model=model, version=form.version())
        except VersionConflict:
            context = self._previewed(model, changes) | {"is_stale": True}
            return self._pages.answer(request, "scheduler_change.html", context, status=409)
        return see("/admin/scheduler", said="configured")

    def _previewed(self, model: str, changes: dict[str, Any] | None) -> dict[str, Any]:
        scheduling = self._services.scheduling
        [present] = scheduling.describe(model)
        [wanted] = scheduling.preview(changes, model=model)
        return {
            "model": model,
            "fields": {"reset": "yes"} if changes is None else changes,
            "version": scheduling.policy.version,
            "present": present,
            "wanted": wanted,
            "lines": changes_of(_settings(present), _settings(wanted)),
            "is_new": present["set"] != wanted["set"],
            "is_reset": changes is None,
            "is_stale": False,
        }

    async def _now(self, request: Request) -> dict[str, Any]:
        """Return each model's scheduler, with the names of the busiest tenants."""
        shown = self._services.scheduling.look(max_tenants=MAX_TENANTS)
        ids = {
            UUID(tenant["tenant_id"])
            for model in shown
            for band in model["state"]["bands"]
            for tenant in band["tenants"]
        }
        named = await self._services.admin.tenants.named(ids)
        return {
            "models": shown,
            "version": self._services.scheduling.policy.version,
            "changed_at": self._services.scheduling.policy.changed_at,
            "not_served": self._services.scheduling.not_served,
            "names": {str(tenant.id): tenant.name for tenant in named.values()},
            "live": {
                (share["tenant"], share["band"]): share["received"]
                for share in (await self._services.live.show())["shares"]
            },
        }

    async def _history(self) -> list[Any]:
        found = await self._services.admin.audit.page(
            AuditFilter(object_kind=_KIND), PageRequest(5)
        )
        return [(audit_row(record), _way_back(record)) for record in found.data]


def _way_back(record: AuditRecord) -> str | None:
    """Return where a change can be undone, by a change of its own; None: it does not say of what.

    A preset that was no preset's numbers cannot be named again, and the form names no numbers.
    """
    entry = record.entry
    before, after = entry.before or {}, entry.after or {}
    is_whole = entry.action == "scheduler.reset" or before.keys() == after.keys()
    if entry.object_id == "all" or not before or not is_whole or before.keys() - set(_NAMED):
        return None
    query = {"model": entry.object_id} | {name: str(was) for name, was in before.items()}
    return f"/admin/scheduler/change?{urlencode(query)}"


def _wanted(form: Form) -> tuple[str, dict[str, Any] | None]:
    """Read which model is to have which policy or preset; None: as its gateway's settings say.

    Raises: `InvalidRequest`.
    """
    changes = {name: text for name in _NAMED if (text := form.text(name))}
    is_reset = form.is_checked("reset")
    if bool(changes) == is_reset or not form.text("model"):
        raise InvalidRequest("Choose a policy or a preset.", param="policy")
    return form.text("model"), None if is_reset else changes


def _settings(described: Mapping[str, Any]) -> Mapping[str, Any]:
    config: Mapping[str, Any] = described["config"]
    return config
