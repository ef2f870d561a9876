"""From what is wanted and what is there to the changes between: compared here, made by the store.

Comparing is some hundred thousand objects, made by turns with whatever else the event loop has.

Nothing is read and nothing is written, so that the store can have it done while it holds what is
there: what was shown is what is made. What is not named is left alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from gateway.domain import ApiKey, KeySecret, KeyStatus, Tenant, TenantSlo, Tier
from gateway.domain.ceilings import held_fields, held_limits
from gateway.domain.desired import (
    ADD,
    CHANGE,
    SAME,
    ChangePlan,
    Desired,
    DesiredKey,
    DesiredTenant,
    Detail,
    KeyWrite,
    PlannedChange,
    PlanWrite,
    Present,
    PriceWrite,
    QuotaWrite,
    TenantWrite,
)
from gateway.domain.plan import Plan
from gateway.domain.price import Price, PriceDraft, readable_price
from gateway.domain.quota import PLATFORM, Quota, Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder, plain_quota
from gateway.errors import AboveCeiling, InvalidRequest
from gateway.services.admin.ceilings import CEILINGS, check_key
from gateway.services.admin.wanted import placed
from gateway.turns import by_turns

_SLO = tuple(field.name for field in fields(TenantSlo))
# What a first price cannot do without.
_FIRST_PRICE = {
    "input_nano_per_mtok": "input_usd_per_mtok",
    "output_nano_per_mtok": "output_usd_per_mtok",
}
# Makes the kid of a new key and what is kept of its secret.
Issue = Callable[[], tuple[str, KeySecret]]


async def planned(desired: Desired, present: Present, now: datetime, issue: Issue) -> ChangePlan:
    """Compare. `issue` is called once for each key that is to be made.

    Raises: `InvalidRequest` with the place: a plan that is nowhere, half a price; `AboveCeiling`.
    """
    changes: list[PlannedChange] = []
    told = hashlib.sha256()
    async for one in by_turns(_Planner(desired, present, now, issue).changes()):
        changes.append(one)
        said = [one.sign, one.subject, one.version, [asdict(detail) for detail in one.details]]
        told.update(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())
    return ChangePlan(changes, present.others, told.hexdigest()[:32])


class _Planner:
    def __init__(self, desired: Desired, present: Present, now: datetime, issue: Issue) -> None:
        self._desired = desired
        self._present = present
        self._now = now
        self._issue = issue
        # As they will be, so that tenants can be on them.
        self._plans = dict(present.plans)

    def changes(self) -> Iterator[PlannedChange]:
        for name, quota in self._desired.plans.items():
            yield self._plan(name, quota)
        for model, named in self._desired.prices.items():
            with placed("prices", model):
                yield _price(model, named, self._present.prices.get(model))
        for kind, quota in self._desired.scopes.items():
            yield self._quota(kind.value, self._the_one(kind), quota)
        for tenant in self._desired.tenants:
            yield from self._tenant(tenant)

    def _plan(self, name: str, quota: Quota) -> PlannedChange:
        before = self._present.plans.get(name)
        details = _limit_details(Quota() if before is None else before.quota, quota)
        subject = f"plan {name}"
        if before is None:
            organisation_id = self._present.organisation_id
            after = Plan(uuid4(), organisation_id, name, 1, self._now, quota)
            self._plans[name] = after
            return PlannedChange(ADD, subject, details, write=PlanWrite(None, after))
        if not details:
            return PlannedChange(SAME, subject, version=before.version)
        after = replace(before, quota=quota, version=before.version + 1)
        return PlannedChange(CHANGE, subject, details, before.version, PlanWrite(before, after))

    def _the_one(self, kind: ScopeKind) -> QuotaHolder:
        """Return the holder of limits of a scope of which there is one."""
        present = self._present
        if kind is ScopeKind.PLATFORM:
            return QuotaHolder(PLATFORM, "platform", present.organisation_id)
        scope = Scope(kind, present.organisation_id)
        return QuotaHolder(scope, present.organisation, present.organisation_id)

    def _quota(self, subject: str, holder: QuotaHolder, quota: Quota) -> PlannedChange:
        before = self._present.quotas.get(holder.scope)
        subject = f"limits of {subject}"
        details = _limit_details(Quota() if before is None else before.quota, quota)
        version = 0 if before is None else before.version
        if not details:
            return PlannedChange(SAME, subject, version=version)
        held: tuple[str, ...] = ()
        if holder.scope.kind is ScopeKind.KEY:
            held = held_limits((), quota)
        return PlannedChange(
            CHANGE, subject, details, version, QuotaWrite(holder, before, quota, held)
        )

    def _first_quota(
        self, subject: str, holder: QuotaHolder, quota: Quota
    ) -> Iterator[PlannedChange]:
        """Set the limits of what is only about to be made."""
        one = self._quota(subject, holder, quota)
        if one.write is not None:
            yield replace(one, sign=ADD)

    def _tenant(self, wanted: DesiredTenant) -> Iterator[PlannedChange]:
        before = self._present.tenants.get(wanted.name)
        subject = f"tenant {wanted.name}"
        base = before or Tenant(uuid4(), self._present.organisation_id, wanted.name, 1.0, self._now)
        with placed("tenants", wanted.name):
            after = self._tenant_after(base, wanted.fields)
        shown = {} if before is None else _shown_tenant(before)
        details = _details(shown, wanted.fields)
        holder = QuotaHolder(
            Scope(ScopeKind.TENANT, after.id),
            after.name,
            after.organisation_id,
            after.id,
            after.plan_id,
        )
        if before is None:
            yield PlannedChange(ADD, subject, details, write=TenantWrite(None, after))
            if wanted.quota is not None:
                yield from self._first_quota(subject, holder, wanted.quota)
        else:
            write = TenantWrite(before, after) if details else None
            yield PlannedChange(
                CHANGE if details else SAME, subject, details, before.version, write
            )
            if wanted.quota is not None:
                yield self._quota(subject, holder, wanted.quota)
        num_live = self._present.num_keys.get(after.id, 0)
        for key in wanted.keys:
            with placed("tenants", wanted.name, "keys", key.name):
                for change in self._key(after, key):
                    if isinstance(change.write, KeyWrite) and change.write.before is None:
                        num_live += 1
                        _check_room(after, num_live)
                    yield change

    def _tenant_after(self, before: Tenant, named: Mapping[str, Any]) -> Tenant:
        after = replace(
            before,
            weight=named.get("weight", before.weight),
            slo=replace(before.slo, **{name: named[name] for name in _SLO if name in named}),
            ceilings=replace(
                before.ceilings, **{name: named[name] for name in CEILINGS if name in named}
            ),
        )
        if "org" in named:
            org = named["org"]
            if org is not None and org not in self._present.orgs:
                raise InvalidRequest(f"there is no org '{org}'.", param="org")
            org_id = None if org is None else self._present.orgs[org]
            after = replace(after, org=org, org_id=org_id)
        if "plan" not in named:
            return after
        name = named["plan"]
        if name is None:
            return replace(after, plan=None, plan_id=None)
        if name not in self._plans:
            raise InvalidRequest(f"there is no plan '{name}'.", param="plan")
        return replace(after, plan=name, plan_id=self._plans[name].id)

    def _key(self, tenant: Tenant, wanted: DesiredKey) -> Iterator[PlannedChange]:
        subject = f"key {tenant.name}/{wanted.name}"
        live = self._present.keys.get((tenant.name, wanted.name), ())
        for before in live:
            details = _details(_shown_key(before), wanted.fields)
            changed = {detail.field: wanted.fields[detail.field] for detail in details}
            check_key(tenant.ceilings, changed)
            held = held_fields(before.operator_set, changed)
            after = replace(before, operator_set=held, version=before.version + 1, **changed)
            write = KeyWrite(before, after) if details else None
            yield PlannedChange(
                CHANGE if details else SAME, subject, details, before.version, write
            )
            if wanted.quota is not None:
                yield self._quota(subject, _holder(tenant, before), wanted.quota)
        if live:
            return
        if wanted.expires_at is not None and wanted.expires_at <= self._now:
            yield PlannedChange(SAME, f"{subject}, whose time is over")
            return
        check_key(tenant.ceilings, wanted.fields)
        kid, secret = self._issue()
        key = self._new_key(tenant, wanted, kid)
        details = _details({}, wanted.fields)
        yield PlannedChange(ADD, subject, details, write=KeyWrite(None, key, secret))
        if wanted.quota is not None:
            yield from self._first_quota(subject, _holder(tenant, key), wanted.quota)

    def _new_key(self, tenant: Tenant, wanted: DesiredKey, kid: str) -> ApiKey:
        fields_of = {"max_tier": Tier.DEFAULT.capped(tenant.ceilings.max_tier), **wanted.fields}
        return ApiKey(
            id=uuid4(),
            tenant_id=tenant.id,
            tenant=tenant.name,
            kid=kid,
            name=wanted.name,
            status=KeyStatus.ACTIVE,
            created_at=self._now,
            expires_at=wanted.expires_at,
            operator_set=held_fields((), wanted.fields),
            **fields_of,
        )


def _price(model: str, named: Mapping[str, int], before: Price | None) -> PlannedChange:
    if before is None:
        for field, name in _FIRST_PRICE.items():
            if field not in named:
                raise InvalidRequest(f"it has no price yet: name its {name}.", param=name)
        draft = PriceDraft(
            model=model, **{"cached_nano_per_mtok": named["input_nano_per_mtok"], **named}
        )
    else:
        kept = {one.name: getattr(before, one.name) for one in fields(PriceDraft)}
        draft = PriceDraft(**{**kept, **named})
    was = {} if before is None else readable_price(before)
    details = _details(was, readable_price(draft))
    version = 0 if before is None else before.version
    if not details:
        return PlannedChange(SAME, f"price {model}", version=version)
    sign = ADD if before is None else CHANGE
    return PlannedChange(sign, f"price {model}", details, version, PriceWrite(before, draft))


def _check_room(tenant: Tenant, num_live: int) -> None:
    """Hold new keys to the number that the tenant may have."""
    most = tenant.ceilings.max_keys
    if most is not None and num_live > most:
        raise AboveCeiling(
            f"the tenant may have {most} live keys: revoke one, or raise its ceiling.",
            param="max_keys",
        )


def _holder(tenant: Tenant, key: ApiKey) -> QuotaHolder:
    scope = Scope(ScopeKind.KEY, key.id)
    return QuotaHolder(scope, key.kid, tenant.organisation_id, tenant.id, tenant=tenant.name)


def _shown_tenant(tenant: Tenant) -> dict[str, Any]:
    return {
        "weight": tenant.weight,
        "plan": tenant.plan,
        "org": tenant.org,
        **asdict(tenant.slo),
        **{name: getattr(tenant.ceilings, name) for name in CEILINGS},
    }


def _shown_key(key: ApiKey) -> dict[str, Any]:
    names = ("max_tier", "models", "cidrs", "allows_batch", "admin_read")
    return {name: getattr(key, name) for name in names}


def _limit_details(before: Quota, wanted: Quota) -> list[Detail]:
    return _details(plain_quota(before), plain_quota(wanted))


def _details(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Detail]:
    return [
        Detail(field, before.get(field), value)
        for field, value in wanted.items()
        if before.get(field) != value
    ]
