"""The admin API of the schedulers: `GET`, `PUT` and `DELETE /admin/v1/scheduler`.

`GET` answers `{"version", "changed_at", "not_served", "data": [...]}`. `version` is of what
operators set for all gateways of the store, 0 where they never did; `not_served` are models that
they set and that are not here. An entry of `data` is a model: `model`, `policy`, `preset` (null
where a number of it was changed), every number in `config`, and as `origins` in the same shape who
set it: `operators`, or the `settings` of this gateway. `set` is what operators set, and `problem`
why that does not hold here, null where it does. `state` is as it is now, of each band with the 500
tenants that have the most.

`PUT` takes a part of `config`, with `policy` and `preset` beside its sections, `model` to choose
one and `version`, and answers with what holds from the next step on, in other gateways within a
second. `DELETE`, with `?model=`, goes back to the settings of each gateway. See
`gateway.services.admin.scheduler_config` for how a change is laid over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
    conflicts_shown,
    query,
    wanted_version,
)
from gateway.api.body import JsonBody
from gateway.domain.scheduler_policy import OperatorPolicy
from gateway.errors import InvalidRequest
from gateway.services.admin import SchedulerControl, SchedulerPolicies, TenantService
from gateway.services.admin.scheduler_control import named, tenant_ids

# Of a band: to describe 5,000 held the event loop for 165 ms.
MAX_TENANTS: Final = 500


def scheduler_routes(
    control: SchedulerControl,
    policies: SchedulerPolicies,
    tenants: TenantService,
    admin_auth: AuthenticatesAdmins,
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    scheduler = _Scheduler(control, policies, tenants)
    return [
        admin_route("/scheduler", "GET", scheduler.show, admin_auth, allows=VIEWERS),
        admin_route("/scheduler", "PUT", scheduler.change, admin_auth, allows=OPERATORS),
        admin_route("/scheduler", "DELETE", scheduler.reset, admin_auth, allows=OPERATORS),
    ]


class _Scheduler:
    def __init__(
        self, control: SchedulerControl, policies: SchedulerPolicies, tenants: TenantService
    ) -> None:
        self._control = control
        self._policies = policies
        self._tenants = tenants
        self._changes = JsonBody(dict[str, Any])

    async def show(self, request: Request) -> Response:
        shown = self._control.look(max_tenants=MAX_TENANTS)
        tenants = await self._tenants.named(tenant_ids(shown))
        return admin_answer(self._view(named(shown, tenants.values())))

    async def change(self, request: Request) -> Response:
        raw = await admin_body(request)
        changes = self._changes.decode(raw)
        model, version = changes.pop("model", None), changes.pop("version", None)
        if model is not None and not isinstance(model, str):
            raise InvalidRequest("'model' must be a text.", param="model", code="invalid_type")
        if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
            raise InvalidRequest(
                "'version' must be a number.", param="version", code="invalid_type"
            )
        with conflicts_shown(self._conflict, raw):
            data = await self._policies.configure(
                actor_of(request),
                changes,
                model=model,
                version=wanted_version(request, version),
            )
        return admin_answer(self._view(data))

    async def reset(self, request: Request) -> Response:
        model = query(request, "model").get("model")
        with conflicts_shown(self._conflict):
            data = await self._policies.reset(
                actor_of(request), model=model, version=wanted_version(request)
            )
        return admin_answer(self._view(data))

    def _view(self, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
        policy = self._control.policy
        return {
            "version": policy.version,
            "changed_at": policy.changed_at,
            "not_served": self._control.not_served,
            "data": data,
        }

    def _conflict(self, _: OperatorPolicy) -> dict[str, Any]:
        """Show what is set, which this process knows by now."""
        return self._view(self._control.describe())
