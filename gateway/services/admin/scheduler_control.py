"""Looking into the schedulers of this process and setting them while they run.

What operators set (`scheduler_policies` has it of the store) is laid over the settings that each
scheduler started with, and holds from the next step on. A model for which it cannot be, as it has
what this release does not know, keeps what it has and says so. Everything here runs on the event
loop and waits for no step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from gateway.domain import Org, Tenant
from gateway.domain.scheduler_policy import Changes, OperatorPolicy
from gateway.errors import Conflict, InvalidRequest, ModelNotFound
from gateway.services.admin.scheduler_changes import changed_policy, origins
from gateway.services.admin.scheduler_config import changed, plain, preset_of
from scheduler.config import SchedulerConfig
from scheduler.state import SchedulerState

logger = logging.getLogger(__name__)


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


@dataclass(slots=True)
class _Laid:
    """Hold what a model's scheduler started with and is to go by.

    `wanted` was asked for last: a service shows what is in force, and a second change within a step
    must not undo the first. `document` made it; `tried` is what is set, and `problem` why that is
    not in `wanted`.
    """

    own: SchedulerConfig
    wanted: SchedulerConfig
    document: Changes = field(default_factory=dict)
    tried: Changes = field(default_factory=dict)
    problem: str | None = None


class SchedulerControl:
    """Show and set the schedulers of `models`."""

    def __init__(self, models: Iterable[Schedules]) -> None:
        self._models = tuple(models)
        configs = {model.name: model.service.config for model in self._models}
        self._laid = {name: _Laid(config, config) for name, config in configs.items()}
        self._policy = OperatorPolicy()

    @property
    def policy(self) -> OperatorPolicy:
        """Return what operators set, as this process knows it."""
        return self._policy

    @property
    def not_served(self) -> list[str]:
        """List the models that something is set for and that are not served here."""
        return sorted(self._policy.models.keys() - self._laid.keys())

    def describe(self, model: str | None = None) -> list[dict[str, Any]]:
        """Return the settings of one model, by name or alias, or of all, as they are wanted last.

        Raises: `ModelNotFound`.
        """
        return [self._described(one.name) for one in self._chosen(model)]

    def look(self, *, max_tenants: int) -> list[dict[str, Any]]:
        """Describe each model's scheduler, of each band so many tenants, the busiest, by id."""
        shown = []
        for model in self._models:
            state = model.service.state(max_tenants=max_tenants)
            view = plain(state)
            del view["config"]
            shown.append(self._described(model.name, state.config) | {"state": view})
        return shown

    def preview(self, changes: Changes | None, *, model: str | None = None) -> list[dict[str, Any]]:
        """Describe what a change would make of the settings. Raises: as `revised`."""
        policy = self.revised(self._policy, changes, model=model)
        shown = []
        for one in self._chosen(model):
            config = changed(self._laid[one.name].own, policy.of(one.name))
            shown.append(self._described(one.name, config, policy.of(one.name)))
        return shown

    def name_of(self, model: str | None) -> str | None:
        """Return the name of a model by a name or alias; None is all. Raises: `ModelNotFound`."""
        chosen = self._chosen(model)
        return None if model is None else chosen[0].name

    def revised(
        self, policy: OperatorPolicy, changes: Changes | None, *, model: str | None = None
    ) -> OperatorPolicy:
        """Return what is set once one model's scheduler, by name or alias, or all are changed.

        `changes`: None: back to the settings. Nothing is done yet, but all of it is checked.

        Raises: `InvalidRequest` with the field's name in `param`; `ModelNotFound`; `Conflict`: with
        what was set before, it cannot be laid over the settings of this process.
        """
        chosen = self._chosen(model)
        if changes is not None:
            for one in chosen:
                changed(self._laid[one.name].wanted, changes)
        revised = changed_policy(policy, changes, self.name_of(model))
        for one in chosen:
            try:
                changed(self._laid[one.name].own, revised.of(one.name))
            except InvalidRequest as exc:
                raise Conflict(
                    f"What operators set before cannot be had here: {exc.message} Change it at a "
                    "gateway that has it, or go back to the settings."
                ) from exc
        return revised

    def lay(self, policy: OperatorPolicy) -> None:
        """Have every scheduler go by what operators set; one that cannot keeps what it has."""
        missing = self.not_served
        self._policy = policy
        for name in self.not_served:
            if name not in missing:
                logger.info("operators set the scheduler of %s, which is not served here", name)
        for model in self._models:
            self._lay_one(model, policy)

    def _lay_one(self, model: Schedules, policy: OperatorPolicy) -> None:
        laid, document = self._laid[model.name], policy.of(model.name)
        if document == laid.tried:
            return
        laid.tried = document
        try:
            config = changed(laid.own, document)
        except InvalidRequest as exc:
            laid.problem = exc.message
            logger.warning(
                "%s: what operators set (version %d) cannot be had here, what was before holds: %s",
                model.name,
                policy.version,
                exc.message,
            )
            return
        laid.document, laid.problem = document, None
        if config != laid.wanted:
            model.service.configure(config)
            laid.wanted = config
            logger.info("%s: scheduled as operators set (version %d)", model.name, policy.version)

    def _described(
        self, name: str, config: SchedulerConfig | None = None, document: Changes | None = None
    ) -> dict[str, Any]:
        laid = self._laid[name]
        config = laid.wanted if config is None else config
        view = plain(config)
        return {
            "model": name,
            "policy": config.fairness.policy,
            "preset": preset_of(config),
            "set": self._policy.of(name) if document is None else document,
            "problem": laid.problem if document is None else None,
            "config": view,
            "origins": origins(view, laid.document if document is None else document),
        }

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


def tenant_ids(shown: Iterable[Mapping[str, Any]]) -> set[UUID]:
    """Return whose ids stand in what `look` returned."""
    bands = (band for one in shown for band in one["state"]["bands"])
    return {UUID(tenant["tenant_id"]) for band in bands for tenant in band["tenants"]}


def named(shown: Iterable[Mapping[str, Any]], tenants: Iterable[Tenant]) -> list[dict[str, Any]]:
    """Name tenants and orgs in what `look` returned, which has them by id."""
    names: dict[str, str] = {}
    for tenant in tenants:
        names[str(tenant.id)] = tenant.name
        if tenant.org is not None:
            names[str(tenant.org_id)] = tenant.org
    return [{**one, "state": _named(one["state"], names)} for one in shown]


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
