"""The admin API of the schedulers: `GET` and `PUT /admin/v1/scheduler`.

`GET` answers `{"data": [...]}`, an entry a model: `model`, `policy`, `preset` (null where a number
of it was changed), every number in `config`, and `state` as it is now. `PUT` takes a part of
`config`, with `policy` and `preset` beside its sections and `model` to choose one, and answers with
what holds from the next step on; the audit log tells of it. See
`gateway.services.admin.scheduler_config` for how it is laid over.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin.routing import (
    OPERATORS,
    VIEWERS,
    AuthenticatesAdmins,
    actor_of,
    admin_answer,
    admin_body,
    admin_route,
)
from gateway.api.body import JsonBody
from gateway.errors import InvalidRequest
from gateway.services.admin import AuditService, SchedulerControl, TenantService


def scheduler_routes(
    control: SchedulerControl,
    tenants: TenantService,
    audit: AuditService,
    admin_auth: AuthenticatesAdmins,
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    scheduler = _Scheduler(control, tenants, audit)
    return [
        admin_route("/scheduler", "GET", scheduler.show, admin_auth, allows=VIEWERS),
        admin_route("/scheduler", "PUT", scheduler.change, admin_auth, allows=OPERATORS),
    ]


class _Scheduler:
    def __init__(
        self, control: SchedulerControl, tenants: TenantService, audit: AuditService
    ) -> None:
        self._control = control
        self._tenants = tenants
        self._audit = audit
        self._changes = JsonBody(dict[str, Any])

    async def show(self, request: Request) -> Response:
        return admin_answer({"data": self._control.show(await self._tenants.list())})

    async def change(self, request: Request) -> Response:
        changes = self._changes.decode(await admin_body(request))
        model = changes.pop("model", None)
        if model is not None and not isinstance(model, str):
            raise InvalidRequest("'model' must be a text.", param="model", code="invalid_type")
        data = self._control.configure(changes, model=model)
        await self._audit.record(
            actor_of(request),
            "scheduler.configure",
            object_kind="scheduler",
            object_id="all" if model is None else model,
            after=changes,
        )
        return admin_answer({"data": data})
