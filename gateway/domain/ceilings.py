"""How far a tenant's owner may go: ceilings of the tenant, and what operators hold of a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from gateway.domain.quota import Quota
from gateway.domain.tier import Tier


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bound all keys of a tenant: what a key is held to beyond these does not count.

    `models` are names, `cidrs` networks of clients, `max_keys` how many keys may be live at a
    time; None bounds nothing. The tenant's own limits, which operators set too, bound those of its
    keys without more.
    """

    max_tier: Tier = Tier.PRIORITY
    models: tuple[str, ...] | None = None
    cidrs: tuple[str, ...] | None = None
    max_keys: int | None = None


NO_CEILINGS: Final = Ceilings()

# What a field of a key is where it holds the key to nothing.
_FREE: Final[Mapping[str, object]] = {
    "max_tier": Tier.PRIORITY,
    "models": None,
    "cidrs": None,
    "allows_batch": True,
    "admin_read": True,
}
# A budget is all three: over another window, or soft, the same amount is another limit.
_BUDGET: Final = frozenset({"budget_nano_usd", "budget_window", "budget_hard"})


def restrictions(key: Mapping[str, object]) -> frozenset[str]:
    """Name those fields of a key that hold it to something."""
    return frozenset(name for name, value in key.items() if name in _FREE and value != _FREE[name])


def held_fields(held: tuple[str, ...], changes: Mapping[str, object]) -> tuple[str, ...]:
    """Return what operators hold of a key after one of them made changes."""
    return tuple(sorted({*held} - {*changes} | restrictions(changes)))


def limits_of(quota: Quota) -> frozenset[str]:
    """Name the fields of limits that are set, all of a budget with any of it."""
    found = {field.name for field in fields(quota) if getattr(quota, field.name) is not None}
    return frozenset(found | _BUDGET if found & _BUDGET else found)


def held_limits(
    held: tuple[str, ...], after: Quota, changed: frozenset[str] | None = None
) -> tuple[str, ...]:
    """Return which limits operators hold after one of them set all, or those of `changed`."""
    if changed is None:
        return tuple(sorted(limits_of(after)))
    if changed & _BUDGET:
        changed |= _BUDGET
    return tuple(sorted({*held} - changed | (limits_of(after) & changed)))
