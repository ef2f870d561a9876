"""Looking into the schedulers of this process and setting them while they run.

What is set holds from the next step on, until the process ends: settings decide how the next one
starts. Everything here runs on the event loop and waits for no step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gateway.domain import Org, Tenant
from gateway.errors import ModelNotFound
from gateway.services.admin.scheduler_config import changed, plain, preset_of
from scheduler.config import SchedulerConfig
from scheduler.state import SchedulerState


class ControlsScheduling(Protocol):
    """Offer what `scheduler.service.EngineService` does of its scheduler."""

    @property
    def config(self) -> SchedulerConfig: ...

    def configure(self, config: SchedulerConfig) -> None: ...

    def state(self, *, max_tenants: int | None = None) -> SchedulerState: ...

    def set_weight(self, tenant_id: str, weight: float) -> None: ...

    def set_organisation_weight(self, organisation_id: str, weight: float) -> None: ...

    def least_pace_s(self) -> float: ...


class Schedules(Protocol):
    """Name what is scheduled; `ServedModel` is one."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> Sequence[str]: ...

    @property
    def service(self) -> ControlsScheduling: ...


class SchedulerControl:
    """Show and set the schedulers of `models`."""

    def __init__(self, models: Iterable[Schedules]) -> None:
        self._models = tuple(models)
        # What was asked for last, since a service shows what is in force: a second change within
        # a step must not undo the first.
        self._wanted = {model.name: model.service.config for model in self._models}

    def show(self, tenants: Sequence[Tenant]) -> list[dict[str, Any]]:
        """Describe each model's scheduler, naming the `tenants` that it knows by id."""
        names = {str(tenant.id): tenant.name for tenant in tenants}
        names |= {str(tenant.org_id): tenant.org for tenant in tenants if tenant.org is not None}
        shown = []
        for model in self._models:
            state = model.service.state()
            view = _named(plain(state), names)
            del view["config"]
            shown.append(_described(model.name, state.config) | {"state": view})
        return shown

    def describe(self) -> list[dict[str, Any]]:
        """Return each model's settings, as they are wanted last."""
        return [_described(name, config) for name, config in self._wanted.items()]

    def look(self, *, max_tenants: int) -> list[dict[str, Any]]:
        """Describe each model's scheduler, of each band so many tenants, the busiest, by id."""
        shown = []
        for model in self._models:
            state = model.service.state(max_tenants=max_tenants)
            view = plain(state)
            del view["config"]
            shown.append(_described(model.name, state.config) | {"state": view})
        return shown

    def preview(
        self, changes: Mapping[str, Any], *, model: str | None = None
    ) -> list[dict[str, Any]]:
        """Describe what `configure` would make of the settings. Raises: as that."""
        chosen = self._chosen(model)
        return [_described(one.name, changed(self._wanted[one.name], changes)) for one in chosen]

    def configure(
        self, changes: Mapping[str, Any], *, model: str | None = None
    ) -> list[dict[str, Any]]:
        """Change one model's scheduler, by name or alias, or all; all or none of what is asked.

        Returns what the settings of these will be.

        Raises: `InvalidRequest` with the field's name in `param`; `ModelNotFound`.
        """
        chosen = self._chosen(model)
        configs = {one.name: changed(self._wanted[one.name], changes) for one in chosen}
        for one in chosen:
            one.service.configure(configs[one.name])
        self._wanted |= configs
        return [_described(name, config) for name, config in configs.items()]

    def _chosen(self, model: str | None) -> list[Schedules]:
        chosen = [one for one in self._models if model is None or model in (one.name, *one.aliases)]
        if not chosen:
            raise ModelNotFound(f"The model '{model}' does not exist.", param="model")
        return chosen

    def least_pace_ms(self) -> float:
        """Say the shortest time between tokens that every model can promise a tenant."""
        return 1000.0 * max((model.service.least_pace_s() for model in self._models), default=0.0)

    def set_tenant(self, tenant: Tenant) -> None:
        """Give what waits of a tenant its present weight."""
        for model in self._models:
            model.service.set_weight(str(tenant.id), tenant.weight)

    def set_org(self, org: Org) -> None:
        """Give what waits of an org's tenants the org's present weight."""
        for model in self._models:
            model.service.set_organisation_weight(str(org.id), org.weight)


def _named(document: Any, names: Mapping[str, str]) -> Any:
    """Add `tenant` and `org`, names, wherever a `tenant_id` stands; None where there is none."""
    if isinstance(document, list):
        return [_named(item, names) for item in document]
    if not isinstance(document, dict):
        return document
    named = {key: _named(item, names) for key, item in document.items()}
    if "tenant_id" in named:
        org = names.get(named.pop("organisation_id", ""))
        named = {"tenant": names.get(named["tenant_id"]), "org": org} | named
    return named


def _described(model: str, config: SchedulerConfig) -> dict[str, Any]:
    return {
        "model": model,
        "policy": config.fairness.policy,
        "preset": preset_of(config),
        "config": plain(config),
    }
