"""From what is wanted and what is there to the changes between: compared here, made one by one.

A change names the version that it was compared with, so that one that somebody else makes in
between is a conflict and not overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from gateway.cli.admin_client import AdminAccess, call, call_all
from gateway.cli.exits import CliError, Exit
from gateway.cli.limits import FIELDS, label, readable
from gateway.cli.options import segment
from gateway.cli.prices import completed
from gateway.cli.tenants_file import Desired, DesiredKey, DesiredTenant

Row = Mapping[str, Any]

ADD, CHANGE, SAME = "+", "~", "="
_UNLIMITED: Final = dict.fromkeys(FIELDS)


@dataclass(frozen=True, slots=True)
class Detail:
    """Say what a field was and is to be, as a person reads it."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Hold one request that makes a change; without a method there is nothing to do.

    `{kid}` in the path of `then` is that of the key that this makes.
    """

    sign: str
    subject: str
    details: tuple[Detail, ...] = ()
    method: str = ""
    path: str = ""
    body: dict[str, Any] | None = None
    version: int | None = None
    then: Change | None = None

    def make(self, access: AdminAccess) -> Any:  # the server's answer
        """Make the change. Raises: `CliError`."""
        answer = call(access, self.method, self.path, body=self.body, version=self.version)
        if self.then is not None:
            then = self.then
            call(access, then.method, then.path.format(kid=answer["kid"]), body=then.body)
        return answer


class Present:
    """Read what is there now."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access
        self.plans = {row["name"]: row for row in call_all(access, "/plans")}
        self.prices = {row["model"]: row for row in call_all(access, "/prices")}
        self.tenants = {row["name"]: row for row in call_all(access, "/tenants")}
        self.keys = [row for row in call_all(access, "/keys") if row["status"] == "active"]

    def quota(self, kind: str, name: str) -> Row:
        state: Row = call(self._access, "GET", f"/quotas/{kind}/{segment(name)}")
        return state


def changes(desired: Desired, present: Present) -> Iterator[Change]:
    """Yield every change, in an order in which each can be made, and what stays.

    Raises: `CliError`: the file names a plan that is nowhere, or half a price.
    """
    for tenant in desired.tenants:
        plan = tenant.fields.get("plan")
        if plan is not None and plan not in desired.plans and plan not in present.plans:
            raise CliError(f"tenants.{tenant.name}, 'plan': there is no plan '{plan}'", Exit.USAGE)
    for name, quota in desired.plans.items():
        yield _plan(name, quota, present.plans.get(name))
    for model, price in desired.prices.items():
        yield _price(model, price, present.prices.get(model))
    for kind, quota in desired.scopes.items():
        yield _quota(kind, kind, "-", quota, present.quota(kind, "-"))
    for tenant in desired.tenants:
        yield from _tenant(tenant, present)


def left_alone(desired: Desired, present: Present) -> list[str]:
    """Name what is there and not in the file."""
    tenants = {tenant.name: {key.name for key in tenant.keys} for tenant in desired.tenants}
    return [
        *(f"plan {name}" for name in present.plans if name not in desired.plans),
        *(f"price {model}" for model in present.prices if model not in desired.prices),
        *(f"tenant {name}" for name in present.tenants if name not in tenants),
        *(
            f"key {key['tenant']}/{key['name']} ({key['kid']})"
            for key in present.keys
            if key["tenant"] in tenants and key["name"] not in tenants[key["tenant"]]
        ),
    ]


def _plan(name: str, quota: dict[str, Any], before: Row | None) -> Change:
    subject = f"plan {name}"
    if before is None:
        body = {"name": name, "quota": quota}
        details = _limit_details(_UNLIMITED, quota)
        return Change(
            sign=ADD, subject=subject, details=details, method="POST", path="/plans", body=body
        )
    details = _limit_details(before["quota"], quota)
    if not details:
        return Change(sign=SAME, subject=subject)
    return Change(
        sign=CHANGE,
        subject=subject,
        details=details,
        method="PATCH",
        path=f"/plans/{segment(name)}",
        body={"quota": quota},
        version=before["version"],
    )


def _price(model: str, wanted: dict[str, str], before: Row | None) -> Change:
    subject = f"price {model}"
    body = completed(model, wanted, before)
    details = tuple(
        Detail(field, None if before is None else before[field], value)
        for field, value in wanted.items()
        if before is None or Decimal(before[field]) != Decimal(value)
    )
    if before is not None and not details:
        return Change(sign=SAME, subject=subject)
    sign = ADD if before is None else CHANGE
    return Change(
        sign=sign, subject=subject, details=details, method="POST", path="/prices", body=body
    )


def _quota(subject: str, kind: str, name: str, quota: dict[str, Any], before: Row) -> Change:
    subject = f"limits of {subject}"
    details = _limit_details(before["quota"], quota)
    if not details:
        return Change(sign=SAME, subject=subject)
    return Change(
        sign=CHANGE,
        subject=subject,
        details=details,
        method="PUT",
        path=f"/quotas/{kind}/{segment(name)}",
        body=quota,
        version=before["version"],
    )


def _tenant(tenant: DesiredTenant, present: Present) -> Iterator[Change]:
    before = present.tenants.get(tenant.name)
    subject = f"tenant {tenant.name}"
    if before is None:
        yield Change(
            sign=ADD,
            subject=subject,
            details=_details({}, tenant.fields),
            method="POST",
            path="/tenants",
            body={"name": tenant.name, **tenant.fields},
        )
    else:
        yield _patch(subject, f"/tenants/{segment(tenant.name)}", tenant.fields, before)
    if tenant.quota is not None:
        if before is None:
            yield _first_quota(subject, f"/quotas/tenant/{segment(tenant.name)}", tenant.quota)
        else:
            state = present.quota("tenant", tenant.name)
            yield _quota(subject, "tenant", tenant.name, tenant.quota, state)
    for key in tenant.keys:
        yield from _key(tenant.name, key, present)


def _key(tenant: str, key: DesiredKey, present: Present) -> Iterator[Change]:
    subject = f"key {tenant}/{key.name}"
    live = [row for row in present.keys if (row["tenant"], row["name"]) == (tenant, key.name)]
    for row in live:
        yield _patch(subject, f"/keys/{row['kid']}", key.fields, row)
        if key.quota is not None:
            state = present.quota("key", row["kid"])
            yield _quota(subject, "key", row["kid"], key.quota, state)
    life_s = key.expires_in_s
    if key.expires_at is not None:
        life_s = (key.expires_at - datetime.now(UTC)).total_seconds()
    if not live and life_s is not None and life_s <= 0:
        yield Change(sign=SAME, subject=f"{subject}, whose time is over")
    elif not live:
        body = {"tenant": tenant, "name": key.name, **key.fields}
        if life_s is not None:
            body["expires_in_s"] = life_s
        details = _details({}, {name: body[name] for name in body if name not in _OF_NEW_KEY})
        quota = None if key.quota is None else _first_quota(subject, _NEW_KEY, key.quota)
        if quota is not None:
            details += quota.details
        yield Change(
            sign=ADD,
            subject=subject,
            details=details,
            method="POST",
            path="/keys",
            body=body,
            then=quota,
        )


_OF_NEW_KEY: Final = ("tenant", "name")
_NEW_KEY: Final = "/quotas/key/{kid}"


def _first_quota(subject: str, path: str, quota: dict[str, Any]) -> Change:
    """Set the limits of what is only about to be made."""
    return Change(
        sign=ADD,
        subject=f"limits of {subject}",
        details=_limit_details(_UNLIMITED, quota),
        method="PUT",
        path=path,
        body=quota,
    )


def _patch(subject: str, path: str, wanted: dict[str, Any], before: Row) -> Change:
    details = _details(before, wanted)
    if not details:
        return Change(sign=SAME, subject=subject)
    body = {detail.field: wanted[detail.field] for detail in details}
    return Change(
        sign=CHANGE,
        subject=subject,
        details=details,
        method="PATCH",
        path=path,
        body=body,
        version=before["version"],
    )


def _details(before: Row, wanted: Mapping[str, Any]) -> tuple[Detail, ...]:
    return tuple(
        Detail(field, before.get(field), value)
        for field, value in wanted.items()
        if before.get(field) != value
    )


def _limit_details(before: Row, wanted: Mapping[str, Any]) -> tuple[Detail, ...]:
    return tuple(
        Detail(label(field), readable(field, before[field]), readable(field, wanted[field]))
        for field in FIELDS
        if before[field] != wanted[field]
    )
