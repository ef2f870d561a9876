"""Which limit said no, in words: what it is, how much of it is used, and when to come back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from gateway.domain import Principal
from gateway.domain.limits import Denied, Limit
from gateway.domain.quota import ScopeKind, Unit
from gateway.errors import QuotaExhausted, TenantLimited
from gateway.services.quotas.standing import standing_of_refusal

# Nobody knows when another of the tenant's requests ends; asking this often costs little.
_OTHERS_END_S: Final = 1.0


def refusal(
    denied: Denied, principal: Principal, now_s: float, *, held: int | None = None
) -> TenantLimited:
    """Return the error for a request that a limit refused; `now_s` is the counters' time.

    `held` is what an item of a batch would hold of the limit: all that it may use.
    """
    error = _error(denied, principal, held)
    error.standing = standing_of_refusal(denied, now_s)
    error.limit = f"{denied.limit.scope.kind.value}.{denied.limit.metric.value}"
    return error


def _error(denied: Denied, principal: Principal, held: int | None) -> TenantLimited:
    limit = denied.limit
    # A limit of nothing holds everything up for a while, as who sets it wants.
    if held is not None and denied.is_exhausted and 0 < limit.amount < held:
        return _above_window(limit, principal, held)
    name, amount = limit.metric.row.text, _amount(limit, limit.amount)
    who = _who(limit, principal)
    if denied.wait_s is None:
        error = TenantLimited(
            f"This request alone is above the limit of {who} on {name}: limit {amount}."
        )
        error.never_fits = True
        return error
    used = _amount(limit, denied.used)
    stands = f"limit {amount}, used {used}"
    if denied.is_exhausted:
        assert limit.slot is not None, "only windows are used up"
        ends = datetime.fromtimestamp(limit.slot.end_s, UTC).isoformat().replace("+00:00", "Z")
        anew = "begins anew" if limit.slot.oldest_s == limit.slot.start_s else "has more again"
        all_of_it = ""
        if held is not None and denied.left > 0:
            all_of_it = (
                f" A request of a batch holds all that it may use, this one {_amount(limit, held)}:"
                " with a smaller bound, as 'max_tokens', it may fit before."
            )
        return QuotaExhausted(
            f"The quota of {who} on {name} is used up for this request: {stands}, "
            f"{_amount(limit, denied.left)} left. It {anew} at {ends}.{all_of_it}"
        )
    wait_s = denied.wait_s or _OTHERS_END_S
    rest = " (the rest is held by requests that run)" if not denied.wait_s else ""
    return TenantLimited(
        f"Rate limit of {who} reached on {name}: {stands}{rest}. Try again in {wait_s:.3g} s.",
        retry_after_s=wait_s,
    )


def _above_window(limit: Limit, principal: Principal, held: int) -> TenantLimited:
    """Say what to mend: no window has as much, so no batch is to wait for one."""
    error = TenantLimited(
        f"This request holds all that it may use, {_amount(limit, held)}, which is above the limit "
        f"of {_who(limit, principal)} on {limit.metric.row.text}: limit "
        f"{_amount(limit, limit.amount)}. Bound its answer, as with 'max_tokens', or have the "
        "limit raised.",
        code=QuotaExhausted.code,
    )
    error.never_fits = True
    return error


def _who(limit: Limit, principal: Principal) -> str:
    kind = limit.scope.kind
    if kind is ScopeKind.KEY:
        return f"key '{principal.kid}'"
    if kind is ScopeKind.TENANT:
        return f"tenant '{principal.tenant}'"
    return "the organisation" if kind is ScopeKind.ORGANISATION else "the platform"


def _amount(limit: Limit, amount: int) -> str:
    if limit.metric.row.unit is not Unit.NANO_USD:
        return str(amount)
    return f"{amount / 1e9:.6f}".rstrip("0").rstrip(".") + " USD"
