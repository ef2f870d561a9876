"""`tenants.toml`: what an operator wants plans, prices, limits, tenants and keys to be.

    [plans.basic]                         # limits, by the names of the options of `sluice quotas`
    rpm = 60
    budget_usd = 25

    [prices.sluice-demo]                  # US dollars for a million tokens
    input_usd_per_mtok = 0.15
    output_usd_per_mtok = 0.60

    [organisation.quota]                  # of all tenants together; [platform.quota]: of all
    monthly_tokens = 1_000_000_000

    [tenants.acme]
    weight = 2
    plan = "basic"
    org = "umbrella"                      # whose share it shares; `sluice orgs` makes it
    quota = { rpm = 600 }                 # its own limits, over its plan's

    [tenants.acme.keys.ci]
    models = ["sluice-demo"]
    expires_in = "90d"

A table of limits is whole: what it does not name is no limit. Of a tenant, a key and a price, what
is not named is left as it is. `ttft_ms = 0` takes a promise back, `plan = ""` takes a tenant off
its plan, `org = ""` out of its org, `models = "any"` holds a key to none, `max_keys = 0` is any
number. What bounds a key (`max_tier`, `models`, `cidrs`) is, in a tenant, the ceiling of all its
keys. Decimals are read digit by digit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import typer

from gateway.cli.exits import CliError, Exit
from gateway.cli.expected import expected, found
from gateway.cli.limits import FIELDS, is_money
from gateway.cli.options import duration_s, usd_to_nano
from gateway.domain import Tier, is_name
from gateway.domain.quota import Metric

T = TypeVar("T", bound=msgspec.Struct)
Table = Mapping[str, Any]

TABLES: Final = ("plans", "prices", "organisation", "platform", "tenants")
ANY: Final = "any"
# What a server takes of a body, and this becomes one of about its size: to read more of it takes
# a second for each megabyte, only to be told so.
_MOST_CHARS: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class DesiredKey:
    """Say what a key is to be: what is named of it, and its limits where the file has them.

    A new one lives for `expires_in_s`, or until `expires_at`.
    """

    name: str
    fields: dict[str, Any]
    expires_in_s: float | None
    expires_at: datetime | None
    quota: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class DesiredTenant:
    """Say what a tenant is to be: what is named of it, and its limits where the file has them."""

    name: str
    fields: dict[str, Any]
    quota: dict[str, Any] | None
    keys: tuple[DesiredKey, ...]


@dataclass(frozen=True, slots=True)
class Desired:
    """Hold a file, by the admin API's names. `scopes` are limits of platform and organisation."""

    plans: dict[str, dict[str, Any]]
    prices: dict[str, dict[str, str]]
    scopes: dict[str, dict[str, Any]]
    tenants: tuple[DesiredTenant, ...]

    def body(self) -> dict[str, Any]:
        """Return it as the admin API is asked for it, all at once."""
        return {
            "plans": self.plans,
            "prices": self.prices,
            **self.scopes,
            "tenants": {tenant.name: _tenant_body(tenant) for tenant in self.tenants},
        }


def _tenant_body(tenant: DesiredTenant) -> dict[str, Any]:
    fields = {name: _number(value) for name, value in tenant.fields.items()}
    keys = {key.name: _key_body(key) for key in tenant.keys}
    return {**fields, **_named_alone(quota=tenant.quota, keys=keys or None)}


def _key_body(key: DesiredKey) -> dict[str, Any]:
    expires_at = None if key.expires_at is None else key.expires_at.isoformat()
    expires_in_s = _number(key.expires_in_s)
    named = _named_alone(expires_in_s=expires_in_s, expires_at=expires_at, quota=key.quota)
    return {**key.fields, **named}


def _named_alone(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _number(value: Any) -> Any:
    """Write a fraction as a string: a body may hold few numbers that are none."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)
    return value


_Limits = msgspec.defstruct(
    "_Limits",
    [
        *((metric.flag, (Decimal if is_money(metric) else int) | None, None) for metric in Metric),
        ("budget_window", str | None, None),
        ("budget_hard", bool | None, None),
    ],
    forbid_unknown_fields=True,
)


class _Price(msgspec.Struct, forbid_unknown_fields=True):
    input_usd_per_mtok: Decimal | None = None
    cached_usd_per_mtok: Decimal | None = None
    output_usd_per_mtok: Decimal | None = None
    priority_multiplier: Decimal | None = None
    default_multiplier: Decimal | None = None
    flex_multiplier: Decimal | None = None
    batch_multiplier: Decimal | None = None


class _Tenant(msgspec.Struct, forbid_unknown_fields=True):
    weight: float | None = None
    plan: str | None = None
    org: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    max_gap_ms: float | None = None
    max_tier: Tier | None = None
    models: list[str] | Literal["any"] | None = None
    cidrs: list[str] | Literal["any"] | None = None
    max_keys: int | None = None
    quota: dict[str, Any] | None = None
    keys: dict[str, Any] | None = None


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    max_tier: Tier | None = None
    models: list[str] | Literal["any"] | None = None
    cidrs: list[str] | Literal["any"] | None = None
    allows_batch: bool | None = None
    admin_read: bool | None = None
    expires_in: str | None = None
    expires_at: datetime | None = None
    quota: dict[str, Any] | None = None


class _Scope(msgspec.Struct, forbid_unknown_fields=True):
    quota: dict[str, Any] | None = None


def read_file(path: Path) -> Desired:
    """Read a file. Raises: `CliError` with the table and the key that is wrong."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARS + 1)
    except (OSError, UnicodeDecodeError) as exc:
        raise CliError(f"{path} cannot be read: {exc}", Exit.USAGE) from None
    if len(text) > _MOST_CHARS:
        raise CliError(
            f"{path} has more than 4 MiB, which is all that a server takes at once: split it, as "
            "what is not in a file is left alone",
            Exit.USAGE,
        )
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as exc:
        # tomllib's own, or of an integer with thousands of digits, or of as many brackets.
        raise CliError(f"{path} is not TOML: {exc}", Exit.USAGE) from None
    return read_document(document)


def read_document(document: Table) -> Desired:
    """Read what a file holds. Raises: `CliError`."""
    _refuse_unknown("the file", document, TABLES)
    scopes = {}
    for kind in ("organisation", "platform"):
        if kind in document:
            scope = _convert(kind, document[kind], _Scope)
            if scope.quota is None:
                raise CliError(f"{kind}: its limits are in a table, [{kind}.quota]", Exit.USAGE)
            scopes[kind] = _limits(f"{kind}.quota", scope.quota)
    return Desired(
        plans={
            _named("plans", name): _limits(f"plans.{name}", table)
            for name, table in _tables("plans", document)
        },
        prices={
            model: _price(f"prices.{model}", table) for model, table in _tables("prices", document)
        },
        scopes=scopes,
        tenants=tuple(_tenant(name, table) for name, table in _tables("tenants", document)),
    )


def _tenant(name: str, table: Table) -> DesiredTenant:
    where = f"tenants.{_named('tenants', name)}"
    tenant = _convert(where, table, _Tenant)
    fields: dict[str, Any] = {} if tenant.weight is None else {"weight": tenant.weight}
    for promise in ("ttft_ms", "tpot_ms", "max_gap_ms"):
        value: float | None = getattr(tenant, promise)
        if value is not None:
            fields[promise] = value or None
    if tenant.plan is not None:
        fields["plan"] = tenant.plan or None
    if tenant.org is not None:
        fields["org"] = tenant.org or None
    if tenant.max_keys is not None:
        fields["max_keys"] = tenant.max_keys or None
    fields |= _bounds(where, tenant)
    keys = [_key(f"{where}.keys", key, of_key) for key, of_key in _tables("keys", table, where)]
    quota = None if tenant.quota is None else _limits(f"{where}.quota", tenant.quota)
    return DesiredTenant(name, fields, quota, tuple(keys))


def _key(parent: str, name: str, table: Table) -> DesiredKey:
    where = f"{parent}.{_named(parent, name)}"
    key = _convert(where, table, _Key)
    given = {"allows_batch": key.allows_batch, "admin_read": key.admin_read}
    fields: dict[str, Any] = {field: one for field, one in given.items() if one is not None}
    fields |= _bounds(where, key)
    life_s = None
    if key.expires_in is not None:
        try:
            life_s = duration_s(key.expires_in, "expires_in")
        except typer.BadParameter as exc:
            raise _wrong(where, "expires_in", exc.message) from None
    if key.expires_at is not None:
        if key.expires_in is not None:
            raise _wrong(where, "expires_at", "it and 'expires_in' exclude each other")
        if key.expires_at.tzinfo is None:
            raise _wrong(where, "expires_at", "it needs a zone, as 2027-01-31T00:00:00Z")
    quota = None if key.quota is None else _limits(f"{where}.quota", key.quota)
    return DesiredKey(name, fields, life_s, key.expires_at, quota)


def _bounds(where: str, of: _Tenant | _Key) -> dict[str, Any]:
    """Return what a key, or all keys of a tenant, are held to, as far as it is named."""
    bounds: dict[str, Any] = {} if of.max_tier is None else {"max_tier": of.max_tier.value}
    if of.models is not None:
        bounds["models"] = None if of.models == ANY else list(dict.fromkeys(of.models))
    if of.cidrs is not None:
        bounds["cidrs"] = None if of.cidrs == ANY else _networks(where, of.cidrs)
    return bounds


def _networks(where: str, texts: list[str] | str) -> list[str]:
    """Write networks as the server does, so that they compare."""
    try:
        return list(dict.fromkeys(str(ip_network(text)) for text in texts))
    except ValueError as exc:
        raise _wrong(where, "cidrs", str(exc)) from None


def _limits(where: str, table: Table) -> dict[str, Any]:
    """Return the limits of a table; those that it does not name are none.

    They are not told as such: with thousands of tables they would be most of a body.
    """
    limits = msgspec.structs.asdict(_convert(where, table, _Limits))
    for metric in Metric:
        amount = limits.pop(metric.flag)
        try:
            is_usd = amount is not None and is_money(metric)
            limits[metric.value] = usd_to_nano(amount) if is_usd else amount
        except ValueError as exc:
            raise _wrong(where, metric.flag, str(exc)) from None
    for field, value in limits.items():
        if isinstance(value, int) and value < 0:
            raise _wrong(where, field, "it must be 0 or more")
    return {field: limits[field] for field in FIELDS if limits[field] is not None}


def _price(where: str, table: Table) -> dict[str, str]:
    price = msgspec.structs.asdict(_convert(where, table, _Price))
    return {field: f"{value:f}" for field, value in price.items() if value is not None}


def _tables(name: str, parent: Table, where: str = "") -> list[tuple[str, Table]]:
    """Return the named tables in a table. Raises: `CliError`: it holds something else."""
    path = f"{where}.{name}" if where else name
    tables = parent.get(name, {})
    if not isinstance(tables, dict):
        list_of = f", not [[{path}]]" if isinstance(tables, list) else ""
        raise CliError(
            f"{path}: write a table for each by its name, [{path}.NAME]{list_of}", Exit.USAGE
        )
    for one, table in tables.items():
        if not isinstance(table, dict):
            raise _wrong(path, one, "it must be a table")
    return list(tables.items())


def _convert(where: str, table: object, kind: type[T]) -> T:
    if not isinstance(table, dict):
        raise CliError(f"{where}: it must be a table, not {found(table)}", Exit.USAGE)
    _refuse_unknown(where, table, kind.__struct_fields__)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as exc:
        _, _, path = str(exc).partition(" - at `$.")
        key = path.strip("`").partition("[")[0]
        if not key:
            raise CliError(f"{where}: {exc}", Exit.USAGE) from None
        said = f"it must be {expected(kind, key)}, not {found(table[key])}"
        raise _wrong(where, key, said) from None


def _refuse_unknown(where: str, table: Table, known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(known)}"
            raise _wrong(where, key, f"there is no such key{hint}")


def _named(where: str, name: str) -> str:
    if not is_name(name):
        raise _wrong(
            where,
            name,
            "a name is 1 to 63 of a-z, 0-9, '-', '_' and '.', a letter or digit first",
        )
    return name


def _wrong(where: str, key: str, text: str) -> CliError:
    return CliError(f"{where}, '{key}': {text}", Exit.USAGE)
