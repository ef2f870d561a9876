"""Caps that are set, taken off and set again over two gateways that serve meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable, TenantLimited
from gateway.services.quotas.reconcile import Reconciler
from gateway.store import Store
from tests.gateway.services.quotas.fleet import PROMPT, Gateway, Tenant, gateway

pytestmark = pytest.mark.anyio

CAP = 2000


@pytest.fixture
def tenant(store: Store) -> Tenant:
    return Tenant(store)


@pytest.fixture
async def gateways(tenant: Tenant, tmp_path: Path) -> AsyncIterator[list[Gateway]]:
    """Run two gateways."""
    async with gateway(tenant, tmp_path / "a") as one, gateway(tenant, tmp_path / "b") as other:
        yield [one, other]


async def test_a_cap_that_is_set_again_counts_what_was_used_without_it(
    tenant: Tenant, gateways: list[Gateway]
) -> None:
    """What ended a moment ago is in no ledger yet, and counts all the same."""
    one, other = gateways
    await tenant.set(daily_tokens=CAP)
    await one.serve(390)
    await tenant.set()
    await other.serve(490)
    await one.serve(490)
    await tenant.set(daily_tokens=CAP)
    used = 400 + 500 + 500 + await _use_up(other)
    for each in gateways:
        await each.told()
    assert await tenant.billed() == used <= CAP


async def test_a_cap_that_is_set_while_requests_run_is_theirs_too(
    tenant: Tenant, gateways: list[Gateway]
) -> None:
    """What they were granted is held of it, and they end where it does."""
    one, other = gateways
    running = [await one.begin(900) for _ in range(3)]
    await tenant.set(daily_tokens=CAP)
    used = await _use_up(other)
    await asyncio.gather(*(one.generate(lease, run) for lease, run in running))
    for lease, run in running:
        used += PROMPT + run.num_used_tokens
        lease.settle(Outcome.COMPLETED)
    for each in gateways:
        await each.told()
    assert await tenant.billed() == used <= CAP
    assert [lease.stop_causes for lease, _ in running] == [{0: "quota"}] * 3


async def test_a_cap_that_is_set_ends_what_runs_though_nobody_else_comes(
    tenant: Tenant, gateways: list[Gateway]
) -> None:
    """Whoever changes it has what runs counted in it."""
    one, other = gateways
    lease, run = await one.begin(CAP)
    await tenant.set(daily_tokens=500)
    [scope] = (await tenant.principal()).quotas
    await other.quotas.limits_changed(scope)
    await one.generate(lease, run)
    lease.settle(Outcome.COMPLETED)
    assert PROMPT + run.num_used_tokens == 500


async def test_a_gateway_that_hears_of_a_cap_late_does_not_pass_it(
    tenant: Tenant, gateways: list[Gateway]
) -> None:
    """It goes on by the limits that it knows, and is told to wait where they do not fit."""
    one, other = gateways
    unlimited = await tenant.principal()
    await tenant.set(daily_tokens=CAP)
    used, begun = await other.serve(990), []
    while len(begun) < 10:
        try:
            begun.append(await one.begin(200, unlimited))
        except CountersUnavailable:
            break
    for lease, run in begun:
        await one.generate(lease, run)
        lease.settle(Outcome.COMPLETED)
        used += PROMPT + run.num_used_tokens
    for each in gateways:
        await each.told()
    assert len(begun) == 4
    assert await tenant.billed() == used <= CAP


async def test_a_cap_that_is_lifted_holds_no_request_up(
    tenant: Tenant, gateways: list[Gateway]
) -> None:
    """Nor does one that another window's replaces; set again, it has all that ran meanwhile."""
    one, other = gateways
    await tenant.set(daily_tokens=CAP)
    used = await _use_up(one)
    await tenant.set()
    used += await one.serve(CAP) + await other.serve(CAP)
    await tenant.set(daily_tokens=1)
    with pytest.raises(TenantLimited):
        await one.serve(90)
    await tenant.set(monthly_tokens=10 * CAP)
    used += await one.serve(90) + await other.serve(90)
    for each in gateways:
        await each.told()
    assert await tenant.billed() == used
    await tenant.set(daily_tokens=used)
    for each in gateways:
        with pytest.raises(TenantLimited):
            await each.serve(90)


@pytest.mark.parametrize("after", [{}, {"monthly_tokens": 10 * CAP}])
async def test_what_runs_without_a_cap_is_not_missed_in_its_window(
    tenant: Tenant, gateways: list[Gateway], after: dict[str, int]
) -> None:
    """Whichever gateway serves it: nothing was lost, so nothing is told of or mended."""
    one, other = gateways
    reconcilers = [Reconciler(each.quotas, tenant.store.ledger, each.metrics) for each in gateways]
    await tenant.set(daily_tokens=CAP)
    for each in gateways:
        await each.serve(90)
    assert await _drifts(gateways, reconcilers) == [(0, 0), (0, 0)]
    await tenant.set(**after)
    await other.serve(190)
    for _ in range(3):
        assert await _drifts(gateways, reconcilers) == [(0, 0), (0, 0)]
    await one.serve(190)
    assert await _drifts(gateways, reconcilers) == [(0, 0), (0, 0)]


async def _drifts(
    gateways: list[Gateway], reconcilers: list[Reconciler]
) -> list[tuple[float, float]]:
    """Compare once everywhere; return the drift that was found, and how much was mended so far."""
    for each in gateways:
        await each.told()
    found = []
    for each, reconciler in zip(gateways, reconcilers, strict=True):
        drift = await reconciler.round()
        name = "sluice_quota_repairs_total"
        found.append((drift, each.metrics.registry.get_sample_value(name) or 0))
    return found


async def _use_up(one: Gateway) -> int:
    """Serve requests until the cap refuses; return the tokens that they used."""
    used = 0
    while used < 10 * CAP:
        try:
            used += await one.serve(90)
        except TenantLimited:
            break
    return used
