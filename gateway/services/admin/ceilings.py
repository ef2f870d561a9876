"""What is asked for a key, compared with the ceilings of its tenant.

The ceilings hold whenever a key is used, so nothing depends on this: it tells an administrator at
once what would not count. It is the same for operators, who raise the ceiling first.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network, ip_network
from typing import Any, Final

from gateway.domain import Ceilings, Tier
from gateway.domain.quota import Kind, Metric, Quota
from gateway.errors import AboveCeiling, InvalidRequest
from gateway.services.auth import checked_cidrs, checked_models

_MAX_KEYS: Final = 1_000_000
CEILINGS: Final = ("max_tier", "models", "cidrs", "max_keys")


def checked_ceilings(values: Mapping[str, object]) -> dict[str, Any]:  # what `Ceilings` takes
    """Return those ceilings that are among `values`, as a tenant keeps them.

    Raises: `InvalidRequest`: names, networks or a number that are none.
    """
    checked: dict[str, Any] = {name: values[name] for name in CEILINGS if name in values}
    if "models" in checked:
        checked["models"] = checked_models(checked["models"])
    if "cidrs" in checked:
        checked["cidrs"] = checked_cidrs(checked["cidrs"])
    max_keys = checked.get("max_keys")
    if max_keys is not None and not 0 <= max_keys <= _MAX_KEYS:
        raise InvalidRequest(
            f"'max_keys' must be 0 to {_MAX_KEYS:,}, or null for any number.", param="max_keys"
        )
    return checked


def check_key(ceilings: Ceilings, fields: Mapping[str, Any]) -> None:
    """Raise `AboveCeiling` where a field of a key reaches beyond its tenant's ceilings.

    A key that is held to nothing is not refused: it has what its tenant has.
    """
    tier = fields.get("max_tier")
    if tier is not None and Tier(tier).capped(ceilings.max_tier) != tier:
        raise AboveCeiling(
            f"'max_tier' may be '{ceilings.max_tier}' at most in this tenant.", param="max_tier"
        )
    models = fields.get("models")
    if models is not None and ceilings.models is not None:
        beyond = [name for name in models if name not in ceilings.models]
        if beyond:
            raise AboveCeiling(
                f"'{beyond[0]}' is none of the models of this tenant.", param="models"
            )
    cidrs = fields.get("cidrs")
    if cidrs is not None and ceilings.cidrs is not None:
        for cidr in cidrs:
            if not any(_is_inside(cidr, bound) for bound in ceilings.cidrs):
                raise AboveCeiling(f"{cidr} is in no network of this tenant.", param="cidrs")


def check_limits(tenant: Quota, wanted: Quota, named: Mapping[str, object]) -> None:
    """Raise `AboveCeiling` where a limit of a key that is named is above its tenant's.

    Amounts over different windows are not compared: both hold.
    """
    for metric in Metric:
        most, amount = tenant.limit(metric), wanted.limit(metric)
        if metric.value not in named or most is None or amount is None or amount <= most:
            continue
        if metric.row.kind is Kind.WINDOW and wanted.window(metric) != tenant.window(metric):
            continue
        raise AboveCeiling(
            f"'{metric.value}' is above the limit of the tenant, which is {most}.",
            param=metric.value,
        )


def _is_inside(cidr: str, bound: str) -> bool:
    inner, outer = ip_network(cidr), ip_network(bound)
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return not isinstance(outer, IPv4Network) and inner.subnet_of(outer)
