"""Having the schedulers of every gateway go by what operators set, wherever they set it.

A change is in the store before any scheduler knows of it, with its record in the audit log: where
the store is away it is refused whole. The process that made it goes by it at once, the others
within a second: each asks twice a second for the epoch of such changes, and reads what is set where
that moved, or was not read for `REFRESH_S`. Whose store is away goes on with what it knows. An
epoch that was lost, or could not be moved, costs others those seconds and nothing else, and clocks
decide nothing: what the store holds now is what is set.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

from gateway.background import Background
from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.scheduler_policy import Changes, OperatorPolicy
from gateway.errors import Conflict, VersionConflict
from gateway.ports import AuthEpoch, Clock, OrganisationStore, SchedulerPolicyStore
from gateway.services.admin.scheduler_changes import at_same_places, is_same
from gateway.services.admin.scheduler_control import SchedulerControl

logger = logging.getLogger(__name__)

EPOCH_INTERVAL_S: Final = 0.5
REFRESH_S: Final = 10.0
# After rounds that failed: a store that comes back is read soon.
_RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)
# Whoever names no version is laid over what others set meanwhile; each try, one of them was done.
_TRIES: Final = 20


class SchedulerPolicies:
    """Set the schedulers of all gateways for an admin; enter `running` to follow the others."""

    def __init__(
        self,
        store: SchedulerPolicyStore,
        organisations: OrganisationStore,
        control: SchedulerControl,
        epoch: AuthEpoch,
        *,
        clock: Clock = time,
    ) -> None:
        self._store = store
        self._organisations = organisations
        self._control = control
        self._epoch = epoch
        self._clock = clock
        # What is read or written last is laid last.
        self._turn = asyncio.Lock()
        self._seen_epoch: int | None = None
        self._read_at = -math.inf
        # Whether a change may be in the store of which others were not told.
        self._owes_news = False

    async def configure(
        self,
        actor: Actor,
        changes: Changes,
        *,
        model: str | None = None,
        version: int | None = None,
    ) -> Sequence[dict[str, Any]]:
        """Change one model's scheduler, by name or alias, or all; all or none of what is asked.

        Returns what the settings of these will be.

        Raises: `InvalidRequest` with the field's name in `param`; `ModelNotFound`;
        `VersionConflict`: `version` is given, and not the present one; `Conflict`;
        `StoreUnavailable`: nothing was changed, or all of it where the store's answer was lost.
        """
        return await self._change(actor, changes, model, version)

    async def reset(
        self, actor: Actor, *, model: str | None = None, version: int | None = None
    ) -> Sequence[dict[str, Any]]:
        """Have one model's scheduler, or all, go by the settings of each gateway again.

        Returns and raises as `configure`.
        """
        return await self._change(actor, None, model, version)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Lay what is set over the settings now, and go on following it while the block runs."""
        background = Background(
            "following what operators set of the schedulers",
            self.follow,
            interval_s=EPOCH_INTERVAL_S,
            retry_s=_RETRY_S,
        )
        await background.round()
        async with background:
            yield

    async def follow(self) -> None:
        """Read what is set if it was changed somewhere, or long ago. Raises: `StoreUnavailable`."""
        epoch = await self._epoch.current()
        is_news = epoch is not None and epoch != self._seen_epoch
        is_old = self._clock.monotonic() - self._read_at >= REFRESH_S
        if not (is_news or is_old or self._owes_news):
            return
        organisation = await self._organisations.default()
        async with self._turn:
            self._control.lay(await self._store.get(organisation.id))
            if epoch is not None:
                self._seen_epoch = epoch
            self._read_at = self._clock.monotonic()
            await self._tell()

    async def _change(
        self, actor: Actor, changes: Changes | None, model: str | None, version: int | None
    ) -> Sequence[dict[str, Any]]:
        control, organisation = self._control, await self._organisations.default()
        async with self._turn:
            for _ in range(_TRIES):
                present = await self._store.get(organisation.id)
                control.lay(present)
                if version not in (None, present.version):
                    raise VersionConflict(present)
                wanted = control.revised(present, changes, model=model)
                if is_same(wanted, present):
                    return control.describe(model)
                entry = self._entry(organisation.id, changes, model)
                self._owes_news = True
                try:
                    made = await self._store.put(actor, entry, wanted, replaces=present.version)
                except VersionConflict:
                    continue
                control.lay(made)
                await self._tell()
                return control.describe(model)
        raise Conflict("Others change the schedulers all the time. Try again.")

    async def _tell(self) -> None:
        """Tell the others of what this process changed, or may have."""
        if self._owes_news:
            await self._epoch.advance()
            self._owes_news = False

    def _entry(
        self, organisation_id: UUID, changes: Changes | None, model: str | None
    ) -> AuditEntry:
        """Describe a change; `before` is what holds here, where it is one for all that changes."""
        policy: OperatorPolicy = self._control.policy
        name = self._control.name_of(model)
        before: dict[str, Any] | None
        if changes is None:
            before = dict(policy.every if name is None else policy.of(name))
            if name is None and policy.models:
                before["models"] = dict(policy.models)
        else:
            held = [_held(one, changes) for one in self._control.describe(model)]
            before = held[0] if all(one == held[0] for one in held) else None
        return AuditEntry(
            action="scheduler.configure" if changes is not None else "scheduler.reset",
            object_kind="scheduler",
            object_id=name or "all",
            organisation_id=organisation_id,
            before=before,
            after=dict(changes or {}),
        )


def _held(described: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Return what a model has where a change sets something; not every preset has a name."""
    known = described["config"] | {name: described[name] for name in ("policy", "preset")}
    held = at_same_places(known, changes)
    return {name: value for name, value in held.items() if name != "preset" or value is not None}
