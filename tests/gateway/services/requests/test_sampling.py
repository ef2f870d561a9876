"""Which requests are kept: what somebody may ask about, and a share of the rest."""

from __future__ import annotations

import random

import pytest

from gateway.services.requests.sampling import Sampler
from scheduler.facts import Preempted, PreemptionCause
from tests.gateway.services.requests.test_causes import BEGAN_S, facts, timeline

# Of whose kind none is in the share.
LAST = "f" * 32


def is_kept(*generations: object, **more: object) -> bool:
    request = timeline(*generations, **more)  # type: ignore[arg-type]
    request.request_id = LAST
    Sampler().decide(request)
    return request.is_sampled


def test_what_went_well_is_not_kept() -> None:
    """A request that computed all the time is of no interest, however long it took."""
    assert not is_kept(facts())
    assert not is_kept(facts(ended_s=60.0), ended_s=60.0)


@pytest.mark.parametrize(
    ("generation", "more"),
    [
        (facts(), {"status": 429}),
        (facts(), {"code": "internal_error"}),
        (facts(), {"is_degraded": True}),
        (facts(), {"first_token_s": BEGAN_S + 0.3, "ttft_slo_s": 0.2}),
        (facts(preemptions=(Preempted(BEGAN_S + 0.5, PreemptionCause.BAND, None),)), {}),
        (facts(admitted_s=1.2, first_token_s=1.3, ended_s=2.0), {"ended_s": 2.0}),
        (facts(ended_s=3.0, rests_s={"paused": 1.1}), {"ended_s": 3.0}),
        (facts(), {"ended_s": 2.1}),
    ],
)
def test_what_somebody_may_ask_about_is_kept(generation: object, more: dict[str, object]) -> None:
    """Errors, missed promises, preemptions, degraded limits, and a second of being held up."""
    assert is_kept(generation, **more)


def test_a_share_of_the_rest_is_kept() -> None:
    """About one in twenty, by the request's id alone: each time the same."""
    drawn, sampler = random.Random(1), Sampler()
    requests = [timeline(facts()) for _ in range(2000)]
    for request in requests:
        request.request_id = f"{drawn.getrandbits(128):032x}"
        sampler.decide(request)
    kept = [request.is_sampled for request in requests]
    assert 60 < sum(kept) < 140
    for request in requests:
        sampler.decide(request)
    assert [request.is_sampled for request in requests] == kept
    for share, expected in ((0.0, False), (1.0, True)):
        Sampler(share=share).decide(requests[0])
        assert requests[0].is_sampled is expected
