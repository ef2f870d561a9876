"""Tenants as rows of arrays, which are given to others when they have nothing left."""

from __future__ import annotations

import math

import pytest

from scheduler.admission.tenant_levels import TenantLevels
from scheduler.config import FairnessConfig
from scheduler.order import FairTree, Node
from waiting import make_sequence


def make_tenants(num_tenants: int, prefix: str) -> list[Node]:
    """Make places of tenants that have nothing any more."""
    tree = FairTree(FairnessConfig())
    nodes = []
    for number in range(num_tenants):
        sequence = make_sequence(1, tenant=f"{prefix}{number}")
        tree.enrol(sequence, 0.0)
        nodes.append(tree.key_of(sequence).above)
        tree.expel(sequence)
    return nodes


def test_a_newcomer_does_not_send_what_another_sent() -> None:
    """Who gets a row that was another's counts with its own tokens alone."""
    levels = TenantLevels(0.0)
    *idle, flood = make_tenants(16, "old")
    for tenant in idle:
        levels.add_inflow(tenant, 1, 0.0)
    levels.add_inflow(flood, 1_000_000, 0.0)
    for tenant in make_tenants(15, "new"):
        levels.add_inflow(tenant, 10, 60.0)
    levels.read()
    faded = math.exp(-6.0)
    sent = levels.served_meanwhile(
        None, 1e12, 60.0, 10.0, draws_cost_per_s=0.0, input_price=1.0, is_level=True
    )
    assert sent == pytest.approx((1_000_000 * faded + 150) / (1.0 - faded))
