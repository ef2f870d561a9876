"""Limits as a caller names them, checked: numbers in their bounds, windows that exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.domain.quota import MAX_AMOUNT, Metric, ScopeKind
from gateway.domain.window import Window
from gateway.errors import InvalidRequest


def checked_limits(
    limits: Mapping[str, object], kind: ScopeKind
) -> dict[str, Any]:  # what `Quota` takes
    """Return limits of a kind of scope by the names that `Quota` gives them, of its types.

    None stays. Raises: `InvalidRequest`: a number out of its bounds, a window that is none, or a
    limit that such a scope cannot hold.
    """
    checked: dict[str, Any] = dict(limits)
    for metric in Metric:
        amount = limits.get(metric.value)
        assert amount is None or isinstance(amount, int), "its type is checked where it is decoded"
        if amount is not None and kind not in metric.row.scopes:
            raise InvalidRequest(
                f"'{metric.value}' is no limit of a {kind.value}.", param=metric.value
            )
        if amount is not None and not 0 <= amount <= MAX_AMOUNT:
            raise InvalidRequest(
                f"'{metric.value}' must be 0 to {MAX_AMOUNT}, or null for no limit.",
                param=metric.value,
            )
    window = limits.get("budget_window")
    if window is not None:
        try:
            checked["budget_window"] = Window(str(window))
        except ValueError as exc:
            raise InvalidRequest(f"'budget_window': {exc}.", param="budget_window") from None
    return checked
