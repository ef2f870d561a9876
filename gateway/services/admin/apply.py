"""Everything that a file says, as one change: planned, shown, and made in one transaction or not.

What is applied is what was shown: a plan has a fingerprint, and one that is sent back holds the
change to that plan. Without one the plan is made and carried out at once, while the store lets
nobody else change what it is made from.

What others keep of keys, limits and prices is told after the commit, as after any change; the
limits of what runs are loaded for `_LOAD_S` at most, and those left by the next request of each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Final

from gateway.credentials import KEY_PREFIX, Secrets, Token
from gateway.domain import IssuedKey, KeySecret, TenantSlo
from gateway.domain.admin import Actor
from gateway.domain.desired import (
    ChangePlan,
    Desired,
    KeyWrite,
    Present,
    PriceWrite,
    TenantWrite,
    Write,
)
from gateway.domain.quota import ScopeQuota
from gateway.errors import PlanChanged
from gateway.ports import AuthEpoch, Clock, SettingsStore
from gateway.services.admin.change_plan import planned
from gateway.services.admin.keys import key_secret
from gateway.services.admin.tenants import HoldsTenants, TenantService, require_pace
from gateway.services.admin.wanted import placed
from gateway.services.auth import Authenticator
from gateway.services.ledger import PriceBook
from gateway.turns import by_turns

_LOAD_S: Final = 2.0
_NO_SECRET: Final = KeySecret("", b"")


@dataclass(frozen=True, slots=True)
class Applied:
    """Say what was done, and show the tokens of new keys, this once."""

    plan: ChangePlan
    tokens: Mapping[str, Token] = field(repr=False)

    def issued(self) -> list[IssuedKey]:
        """Return the keys that were made."""
        return [
            IssuedKey(key=write.after, token=self.tokens[write.after.kid].text)
            for write in self.plan.writes
            if isinstance(write, KeyWrite) and write.before is None
        ]


class ApplyService:
    """Plan and make what is wanted, for an operator; who may call this is decided above."""

    def __init__(
        self,
        settings: SettingsStore,
        tenants: TenantService,
        secrets: Secrets,
        authenticator: Authenticator,
        epoch: AuthEpoch,
        running: HoldsTenants,
        prices: PriceBook,
        *,
        load: Callable[[ScopeQuota], Awaitable[None]],
        clock: Clock = time,
    ) -> None:
        self._settings = settings
        self._tenants = tenants
        self._secrets = secrets
        self._authenticator = authenticator
        self._epoch = epoch
        self._running = running
        self._prices = prices
        self._load = load
        self._clock = clock

    async def plan(self, desired: Desired) -> ChangePlan:
        """Say what would be done. Raises: as `apply`, but for conflicts."""
        organisation = await self._tenants.organisation()
        present = await self._settings.look(organisation, desired)
        plan = await planned(desired, present, self._now(), lambda: ("", _NO_SECRET))
        await self._require_paces(plan)
        return plan

    async def apply(
        self,
        actor: Actor,
        desired: Desired,
        *,
        fingerprint: str | None = None,
        agreed: Callable[[], Awaitable[None]],
    ) -> Applied:
        """Do all of it or nothing; `agreed` may raise before it is final.

        Raises: `InvalidRequest` with the place, `AboveCeiling`; `PlanChanged`: it would not be the
        plan of that fingerprint, with the present one in `current`; `Conflict`.
        """
        organisation = await self._tenants.organisation()
        tokens: dict[str, Token] = {}
        plans: list[ChangePlan] = []

        def issue() -> tuple[str, KeySecret]:
            token = self._secrets.issue(KEY_PREFIX)
            tokens[token.kid] = token
            return token.kid, key_secret(self._secrets, token)

        async def decide(present: Present) -> Sequence[Write]:
            plan = await planned(desired, present, self._now(), issue)
            if fingerprint not in (None, plan.fingerprint):
                raise PlanChanged(plan)
            await self._require_paces(plan)
            plans.append(plan)
            return plan.writes

        changed = await self._settings.apply(actor, organisation, desired, decide, agreed)
        [plan] = plans
        if writes := plan.writes:
            await self._tell(writes, changed)
        return Applied(plan, tokens)

    async def _require_paces(self, plan: ChangePlan) -> None:
        """Refuse promises that the plan sets and that would cost other tenants too much."""
        # One for all: it asks the running scheduler for the time of many steps.
        least_ms = cache(self._running.least_pace_ms)
        async for write in by_turns(plan.writes):
            if isinstance(write, TenantWrite):
                before = TenantSlo() if write.before is None else write.before.slo
                after = asdict(write.after.slo)
                same = asdict(before).items()
                with placed("tenants", write.after.name):
                    require_pace(dict(after.items() - same), least_ms)

    async def _tell(self, writes: Sequence[Write], changed: Sequence[ScopeQuota]) -> None:
        """Have everybody learn of what stands already; what fails here is learned later."""
        self._authenticator.forget_all()
        async for write in by_turns(writes):
            if isinstance(write, TenantWrite) and write.before is not None:
                self._running.set_tenant(write.after)
        if any(isinstance(write, PriceWrite) for write in writes):
            await self._prices.refresh()
        await self._epoch.advance()
        try:
            async with asyncio.timeout(_LOAD_S):
                # Most have no windows to load, and nothing to wait for.
                async for scope in by_turns(changed, 1):
                    await self._load(scope)
        except TimeoutError:
            pass

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.time(), UTC)
