"""What counters that forgot everything are told of bills that came while nobody could tell them."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec
import pytest

from gateway.domain.counters import Recount, Settle
from gateway.services.quotas.link import LEASE_S
from gateway.services.quotas.recovery import Recovery
from tests.gateway.services.quotas.scripted import LOOK, Rig
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


async def told(rig: Rig) -> set[UUID]:
    """Return the keys whose windows are to be loaded again."""
    await rig.link.flush()
    ops = rig.counters.asked(Recount)
    assert all(len(op.metas) <= 50 for op in ops)
    metas = [meta for op in ops for meta in op.metas]
    assert len(metas) == len(set(metas))
    return {UUID(msgspec.json.decode(meta)[2]) for meta in metas}


async def test_whose_rows_came_lately_is_told_once_each(rig: Rig) -> None:
    """Whoever loaded the counters meanwhile may have read the ledger before."""
    recovery = Recovery(lambda row: None, rig.link)
    await rig.link.ask(LOOK)
    keys = [uuid4() for _ in range(120)]
    recovery.written([usage_row(key_id=uuid4())])
    rig.clock.now_s += 2 * LEASE_S + 1
    for _ in range(2):
        recovery.written([usage_row(key_id=key) for key in keys])
    rig.clock.now_s += 2 * LEASE_S - 1
    recovery.settle_again([])
    assert await told(rig) == set(keys)


async def test_what_waits_for_the_ledger_is_settled_and_nobody_recounted(rig: Rig) -> None:
    """Whoever loads asks the ledger for that by its name."""
    recovery = Recovery(lambda row: None, rig.link)
    row = usage_row()
    recovery.settle_again([row])
    assert await told(rig) == set()
    [settled] = rig.counters.asked(Settle)
    assert settled.request_id == row.request_id.hex
    assert settled.meta
