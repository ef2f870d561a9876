"""Which part of the service a weight would give a tenant, beside those that want some now.

Within a class, what each has a right to is its weight over the sum of all weights that want
something. That sum is what the present entitlement and weight of anybody say of it, so that
neither tenants beyond those that are shown nor orgs, whose weights nobody sees here, are missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.domain import Tenant


@dataclass(frozen=True, slots=True)
class Predicted:
    """Say what a tenant has a right to of a class, now and with another weight."""

    band: str
    now: float | None
    then: float


def predicted_shares(
    tenant: Tenant, weight: float, shares: Iterable[Mapping[str, Any]]
) -> list[Predicted]:
    """Predict for each class in which somebody wants something now.

    A tenant of an org shares with its org's others first, of whom nothing is known here: none.
    """
    if tenant.org_id is not None:
        return []
    of_band: dict[str, list[Mapping[str, Any]]] = {}
    for share in shares:
        if share["queued"] or share["running"]:
            of_band.setdefault(share["band"], []).append(share)
    predicted = []
    for band, present in of_band.items():
        mine = next((one for one in present if one["tenant"] == tenant.name), None)
        known = mine or next((one for one in present if one["entitled"]), None)
        if known is None or not known["entitled"]:
            continue
        others = known["weight"] / known["entitled"] - (0.0 if mine is None else mine["weight"])
        now = None if mine is None else mine["entitled"]
        predicted.append(Predicted(band, now, weight / (weight + max(0.0, others))))
    return predicted
