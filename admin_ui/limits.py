"""Limits as screens show and take them: what is set, what holds and why, how far it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from admin_ui.screens import Form
from gateway.domain.quota import Kind, Metric, Quota, ScopeKind, Unit
from gateway.domain.quota_settings import QuotaState
from gateway.errors import InvalidRequest
from gateway.services.quotas.usage import LimitUse

NANO: Final = 1_000_000_000
_MAX_NANO: Final = 2**63 - 1
LABELS: Final[Mapping[Metric, str]] = {
    Metric.RPM: "Requests a minute",
    Metric.INPUT_TPM: "Input tokens a minute",
    Metric.OUTPUT_TPM: "Output tokens a minute",
    Metric.CONCURRENCY: "Requests at a time",
    Metric.QUEUED_TOKENS: "Waiting prompt tokens",
    Metric.DAILY_TOKENS: "Tokens a day",
    Metric.MONTHLY_TOKENS: "Tokens a month",
    Metric.BUDGET: "Budget, USD",
}
WINDOWS: Final = ("month", "week", "day", "30d", "7d", "24h")


@dataclass(frozen=True, slots=True)
class Line:
    """Show one limit. `own` is what its field holds, `source` where what holds comes from."""

    name: str
    label: str
    own: str
    holds: int | None
    source: str
    is_money: bool
    use: LimitUse | None
    resets_at: datetime | None
    can_reset: bool


def lines_of(state: QuotaState, uses: Sequence[LimitUse] | None, plan: str | None) -> list[Line]:
    """Return every limit that such a scope may hold; `uses` None: the counters do not answer."""
    used = {use.metric: use for use in uses or ()}
    effective = state.effective.quota
    return [
        Line(
            name=metric.value,
            label=LABELS[metric],
            own=written(metric, state.quota.limit(metric)),
            holds=effective.limit(metric),
            source=_source(state, metric, plan),
            is_money=metric.row.unit is Unit.NANO_USD,
            use=used.get(metric),
            resets_at=_moment(used.get(metric)),
            can_reset=metric.row.kind is not Kind.COUNT,
        )
        for metric in metrics_of(state.holder.scope.kind)
    ]


def metrics_of(kind: ScopeKind) -> list[Metric]:
    """Return the limits that a kind of scope may hold."""
    return [metric for metric in Metric if kind in metric.row.scopes]


def written(metric: Metric, amount: int | None) -> str:
    """Write a limit as its field takes it."""
    if amount is None:
        return ""
    if metric.row.unit is Unit.NANO_USD:
        return (
            f"{Decimal(amount) / NANO:f}".rstrip("0").rstrip(".")
            if amount % NANO
            else (str(amount // NANO))
        )
    return str(amount)


def read_limits(form: Form, kind: ScopeKind) -> dict[str, object]:
    """Read the limits of a form; an empty field is no limit of the scope's own.

    Raises: `InvalidRequest`.
    """
    limits: dict[str, object] = {}
    for metric in metrics_of(kind):
        if metric.row.unit is Unit.NANO_USD:
            limits[metric.value] = _nano(form.text(metric.value), metric.value)
        else:
            limits[metric.value] = form.integer(metric.value)
    if limits.get(Metric.BUDGET.value) is not None:
        limits["budget_window"] = form.optional("budget_window")
        limits["budget_hard"] = form.text("budget_hard", "yes") == "yes"
    return limits


def quota_of(limits: Mapping[str, object]) -> Quota:
    """Return the amounts of limits as they were read, without how a budget is held to."""
    amounts: dict[str, Any] = {metric.value: limits.get(metric.value) for metric in Metric}
    return Quota(**amounts)


def laid_over(below: Quota, above: Quota) -> Quota:
    """Return the amounts that hold where some limits lie over others."""
    amounts: dict[str, Any] = {
        metric.value: below.limit(metric) if above.limit(metric) is None else above.limit(metric)
        for metric in Metric
    }
    return Quota(**amounts)


def differences(before: Quota, after: Quota) -> list[tuple[str, str]]:
    """Return what differs between limits, as a diff shows it."""
    lines = []
    for metric in Metric:
        old, new = before.limit(metric), after.limit(metric)
        if old != new:
            lines += [
                (sign, f"{LABELS[metric]}: {written(metric, amount) or 'not set'}")
                for sign, amount in (("-", old), ("+", new))
            ]
    return lines


def _nano(text: str, param: str) -> int | None:
    if not text:
        return None
    try:
        nano = Decimal(text.replace(",", "").lstrip("$")) * NANO
        # What has more digits than any limit takes long to write out.
        if 0 <= nano <= _MAX_NANO and nano == nano.to_integral_value():
            return int(nano)
    except ArithmeticError:
        pass
    raise InvalidRequest("An amount in US dollars is wanted here, as 25 or 0.15.", param=param)


def _source(state: QuotaState, metric: Metric, plan: str | None) -> str:
    if state.override is not None and state.override.quota.limit(metric) is not None:
        return "override"
    if state.quota.limit(metric) is not None:
        return "own"
    if state.effective.quota.limit(metric) is not None:
        return f"plan {plan}" if plan else "plan"
    return ""


def _moment(use: LimitUse | None) -> datetime | None:
    if use is None or use.resets_at_s is None:
        return None
    return datetime.fromtimestamp(use.resets_at_s, UTC)
