"""Tenants as rows of arrays, which are given to others when they have nothing left."""

from __future__ import annotations

import math

import pytest

from scheduler.admission.tenant_levels import TenantLevels
from scheduler.config import FairnessConfig
from scheduler.order import FairTree, Node
from waiting import make_sequence, push


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


def test_who_is_swept_leaves_nothing_but_what_it_sent() -> None:
    """What an idle tenant had queued, weighed and was served counts for nobody any more."""
    tree, levels = FairTree(FairnessConfig()), TenantLevels(0.0)
    gone, stays = make_sequence(500, tenant="gone"), make_sequence(500, tenant="stays")
    for sequence in (gone, stays):
        push(tree, sequence)
        levels.add_inflow(tree.key_of(sequence).above, 500, 0.0)
    tree.charge(stays, 1_000.0, 0.0)
    levels.read()
    tenant = tree.key_of(gone).above
    tree.remove(gone, 0.0)
    tree.expel(gone)
    levels.swept(tenant)
    levels.read()
    assert levels.weight_beside(None) == 1.0
    # Long after, a newcomer begins level with who waits, who is alone ahead of it.
    ahead = levels.served_meanwhile(
        None, 300.0, 1e4, 10.0, draws_cost_per_s=0.0, input_price=1.0, is_level=True
    )
    assert ahead == pytest.approx(300.0)


def test_what_one_sent_that_is_swept_unasked_is_expected_again() -> None:
    """Tenants that come and go send as much later, each as far as it is behind for its weight."""
    levels = TenantLevels(0.0)
    for tenant in make_tenants(10, "gone"):
        tenant.weight, tenant.counter = 2.0, 100.0
        levels.add_inflow(tenant, 1_000, 0.0)
        levels.swept(tenant)
    levels.read()

    def ahead(own_cost: float) -> float:
        return levels.served_meanwhile(
            None, own_cost, 1.0, 1.0, draws_cost_per_s=0.0, input_price=1.0, is_level=True
        )

    assert ahead(100.0) == 0.0
    assert ahead(130.0) == pytest.approx(10 * 60.0)
