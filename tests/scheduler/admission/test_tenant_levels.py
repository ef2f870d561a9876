"""Tenants as rows of arrays, which are given to others when they have nothing left."""

from __future__ import annotations

import math

import pytest

from scheduler.admission.tenant_levels import Inflow, TenantLevels
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


def _levels_of(counters: dict[str, float]) -> tuple[FairTree, TenantLevels]:
    """Have tenants wait with 500 tokens each, and counters."""
    tree, levels = FairTree(FairnessConfig()), TenantLevels(0.0)
    for tenant, counter in counters.items():
        sequence = make_sequence(500, tenant=tenant)
        push(tree, sequence)
        node = tree.key_of(sequence).above
        node.counter = counter
        levels.add_inflow(node, 0, 0.0)
    levels.read()
    return tree, levels


def _ahead(
    levels: TenantLevels,
    own: Node | None,
    own_cost: float,
    *,
    drawn: float = 0.0,
    price: float = 1.0,
) -> float:
    return levels.served_meanwhile(
        own, own_cost, 1e4, 1.0, draws_cost_per_s=drawn, input_price=price, is_level=False
    )


def test_who_comes_back_begins_with_those_who_wait() -> None:
    """A tenant whose counter has stayed behind meanwhile goes before nobody for that."""
    tree, levels = _levels_of({"waits": 1_000.0, "ahead": 1_100.0})
    back = make_sequence(100, tenant="back")
    tree.enrol(back, 0.0)
    own = tree.key_of(back).above
    levels.add_inflow(own, 0, 0.0)
    levels.read()
    assert own.counter == 0.0
    assert _ahead(levels, own, 300.0) == pytest.approx(300.0 + 200.0)


def test_rows_of_its_own_put_a_tenant_back() -> None:
    """What its rows draw meanwhile raises its counter, and so what goes before its next request."""
    tree, levels = _levels_of({"waits": 0.0, "own": 0.0})
    row = make_sequence(100, tenant="own")
    tree.enrol(row, 0.0)
    own = tree.key_of(row).above
    levels.stale.add(own)
    levels.read()
    assert _ahead(levels, own, 100.0) == pytest.approx(100.0)
    assert _ahead(levels, own, 100.0, drawn=50.0) == pytest.approx(150.0)


def test_what_goes_before_is_counted_in_tokens_whatever_they_cost() -> None:
    """Of tokens at twice the price half as many go before the same counter."""
    _, levels = _levels_of({"waits": 0.0})
    assert _ahead(levels, None, 300.0, price=2.0) == pytest.approx(150.0)


def test_what_was_sent_long_ago_is_not_taken_for_new() -> None:
    """After ten minutes of nothing, what a tenant sends then is all that it sends."""
    levels = TenantLevels(0.0)
    (tenant,) = make_tenants(1, "a")
    levels.add_inflow(tenant, 1_000_000, 0.0)
    levels.add_inflow(tenant, 10, 600.0)
    levels.read()
    sent = levels.served_meanwhile(
        None, 1e12, 600.0, 10.0, draws_cost_per_s=0.0, input_price=1.0, is_level=True
    )
    assert sent == pytest.approx(10.0)


def test_a_steady_inflow_is_what_comes_in_a_second() -> None:
    """A hundred tokens each second for a minute are a hundred a second."""
    inflow = Inflow(0.0)
    for second in range(60):
        inflow.add(100, float(second))
    assert inflow.tokens_per_s(59.5) == pytest.approx(100.0, rel=0.02)
