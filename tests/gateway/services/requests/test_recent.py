"""What ended in the last minute, by tenant: summed as it comes, bounded, forgotten."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.services.requests.recent import FirstTokens, Recent, RecentRequests
from tests.gateway.services.requests.test_causes import BEGAN_S
from tests.gateway.services.requests.test_recorder import ACME, GLOBEX, SteppedClock, ended


def test_requests_are_summed_by_tenant() -> None:
    """Those that ended, failed, drew a token, were promised something and missed it."""
    recent = RecentRequests(clock=SteppedClock())
    recent.tell(ended(first_token_s=BEGAN_S + 0.2, output_tokens=4, ttft_slo_s=0.5))
    recent.tell(ended(first_token_s=BEGAN_S + 0.8, output_tokens=6, ttft_slo_s=0.5))
    recent.tell(ended(status=429))
    recent.tell(ended(tenant_id=GLOBEX, is_sampled=False))
    recent.tell(ended(tenant_id=None))
    sums = recent.sums()
    assert set(sums) == {ACME, GLOBEX}
    assert sums[GLOBEX] == Recent(num_ended=1)
    assert sums[GLOBEX].mean_ttft_s is None
    ours = sums[ACME]
    assert (ours.num_ended, ours.num_failed, ours.num_drawn) == (3, 1, 2)
    assert (ours.num_promised, ours.num_missed, ours.output_tokens) == (2, 1, 10)
    assert round(ours.mean_ttft_s or 0, 6) == 0.5
    assert round(ours.worst_ttft_s, 6) == 0.8


def test_a_minute_later_they_are_forgotten() -> None:
    """What ended longer ago than the window is in no sum, and in no memory."""
    clock = SteppedClock()
    recent = RecentRequests(clock=clock)
    for second in range(0, 600, 5):
        clock.now_s = float(second)
        recent.tell(ended())
        assert recent.sums()[ACME].num_ended == min(12, second // 5 + 1)
    assert len(recent._slots) <= 13
    clock.now_s += 60
    assert recent.sums() == {}


def test_many_tenants_are_counted_together() -> None:
    """Beyond so many in a slot, tenants are not told apart; nobody is lost of the sum."""
    recent = RecentRequests(clock=SteppedClock(), max_tenants=3)
    for number in range(50):
        recent.tell(ended(tenant_id=UUID(int=number)))
    sums = recent.sums()
    assert len(sums) == 4
    assert sums[None].num_ended == 47


def test_quantiles_of_first_tokens_are_right_to_a_twentieth() -> None:
    """Of all tenants together, over the last minute; without any there is none."""
    clock = SteppedClock()
    recent = RecentRequests(clock=clock)
    assert recent.first_tokens() == FirstTokens()
    for number in range(1, 201):
        tenant_id = ACME if number % 2 else GLOBEX
        recent.tell(ended(tenant_id=tenant_id, first_token_s=BEGAN_S + number / 100))
    found = recent.first_tokens()
    assert found.num_drawn == 200
    assert found.p50_s == pytest.approx(1.0, rel=0.05)
    assert found.p95_s == pytest.approx(1.9, rel=0.05)
    assert found.p99_s == pytest.approx(1.98, rel=0.05)
    clock.now_s += 60
    assert recent.first_tokens() == FirstTokens()
