"""What is wanted, as it is asked for and as it is kept: every value in its bounds.

Each function raises `InvalidRequest` that says where in the whole it is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from gateway.domain import is_name
from gateway.domain.desired import Desired, DesiredKey, DesiredTenant
from gateway.domain.quota import Quota, ScopeKind
from gateway.errors import InvalidRequest
from gateway.services.admin.keys import checked_key, expiry
from gateway.services.admin.quota_limits import checked_limits
from gateway.services.admin.tenants import checked_tenant, require_name
from gateway.services.ledger import price_units, require_model

# One transaction holds what it changes until its end, and everybody else who would change it.
MAX_ENTRIES: Final = 5_000
_SHOWN_CHARS: Final = 63

Limits = Mapping[str, Any]


def wanted(
    plans: Mapping[str, Limits],
    prices: Mapping[str, Mapping[str, Decimal]],
    scopes: Mapping[ScopeKind, Limits],
    tenants: list[DesiredTenant],
) -> Desired:
    """Put all together; prices are by the names that the API has for their parts."""
    kept_plans = {}
    for name, limits in plans.items():
        with placed("plans", name):
            require_name(name, param="name")
            kept_plans[name] = _quota(limits, ScopeKind.PLAN)
    kept_prices = {}
    for model, named in prices.items():
        with placed("prices", model):
            require_model(model)
            kept_prices[model] = price_units(named)
    kept_scopes = {}
    for kind, limits in scopes.items():
        with placed(kind.value, "quota"):
            kept_scopes[kind] = _quota(limits, kind)
    desired = Desired(kept_plans, kept_prices, kept_scopes, tenants)
    if desired.num_entries > MAX_ENTRIES:
        raise InvalidRequest(
            f"There are {desired.num_entries:,} plans, prices, tenants and keys, and "
            f"{MAX_ENTRIES:,} may be applied at a time: apply them in parts.",
            code="too_many_entries",
        )
    return desired


def wanted_tenant(
    name: str, fields: Mapping[str, Any], limits: Limits | None, keys: Sequence[DesiredKey]
) -> DesiredTenant:
    """Say what a tenant is to be."""
    with placed("tenants", name):
        require_name(name, param="name")
        # Whether there is a plan or an org of a name is said where they are looked up.
        named = {field: fields[field] for field in fields if field in ("plan", "org")}
        for field, called in named.items():
            # It is in no lookup, which the database might not even take.
            if called is not None and not is_name(called):
                raise InvalidRequest(f"there is no {field} '{called}'.", param=field)
        kept = checked_tenant({field: fields[field] for field in fields if field not in named})
        kept |= named
        quota = None if limits is None else _quota(limits, ScopeKind.TENANT)
    return DesiredTenant(name, kept, quota, keys)


def wanted_key(
    tenant: str,
    name: str,
    fields: Mapping[str, Any],
    limits: Limits | None,
    *,
    expires_in_s: float | None,
    expires_at: datetime | None,
) -> DesiredKey:
    """Say what a key is to be; a new one lives so long, or until then."""
    with placed("tenants", tenant, "keys", name):
        require_name(name, param="name")
        if expires_at is None:
            expires_at = expiry(expires_in_s, time)
        elif expires_in_s is not None or expires_at.tzinfo is None:
            raise InvalidRequest(
                "'expires_at' needs a zone, and stands alone or not at all.", param="expires_at"
            )
        elif not 1 < expires_at.year < 9999:
            # In another zone it could be in a year that there is not.
            raise InvalidRequest("'expires_at' is in no year of ours.", param="expires_at")
        else:
            expires_at = expires_at.astimezone(UTC)
        quota = None if limits is None else _quota(limits, ScopeKind.KEY)
        return DesiredKey(name, checked_key(fields), expires_at, quota)


@contextmanager
def placed(*path: str) -> Iterator[None]:
    """Say where in what was asked for something is wrong."""
    try:
        yield
    except InvalidRequest as exc:
        place = ".".join(part[:_SHOWN_CHARS] for part in path)
        raise type(exc)(f"{place}: {exc.message}", param=exc.param, code=exc.code) from None


def _quota(limits: Limits, kind: ScopeKind) -> Quota:
    return Quota(**checked_limits(limits, kind))
