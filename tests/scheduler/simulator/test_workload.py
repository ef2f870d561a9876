"""Workloads make requests whose content, ends and terms are as described."""

from __future__ import annotations

import pytest

from scheduler.request import Band, Slo
from scheduler.simulator.workload import Arrival, Workload


def arrival(at_s: float = 0.0, **fields: object) -> Arrival:
    values = {"tenant_id": "acme", "num_prompt_tokens": 10, "num_output_tokens": 5, **fields}
    return Arrival(at_s=at_s, **values)  # type: ignore[arg-type]


def test_prompts_without_blocks_begin_apart() -> None:
    """Two requests of equal length share no prefix, and both are as long as they were said."""
    first, second = (arrival().request(index).prompt_token_ids for index in (0, 1))
    assert len(first) == len(second) == 10
    assert first[0] != second[0]


def test_equal_blocks_are_equal_content() -> None:
    """Prompts share exactly the blocks whose ids are equal; the last block may be cut short."""
    one = arrival(block_ids=(1, 2, 3), block_tokens=4).request(0).prompt_token_ids
    other = arrival(block_ids=(1, 2, 9), block_tokens=4).request(1).prompt_token_ids
    assert len(one) == len(other) == 10
    assert one[:8] == other[:8]
    assert one[8] != other[8]


def test_request_asks_for_the_true_length_unless_told_otherwise() -> None:
    """By default no end token counts; with `max_tokens` a model may end the answer sooner."""
    exact = arrival().request(0).params
    assert (exact.max_tokens, exact.ignore_eos) == (5, True)
    open_ended = arrival(max_tokens=100).request(0).params
    assert (open_ended.max_tokens, open_ended.ignore_eos) == (100, False)
    assert arrival(max_tokens=2).request(0).params.max_tokens == 5


def test_terms_reach_the_request() -> None:
    """Weight, band, promises and patience are those of the arrival."""
    request = arrival(
        3.0, weight=2.0, band=Band.FLEX, slo=Slo(ttft_s=1.0), patience_s=4.0, key_id="k"
    ).request(7)
    assert (request.weight, request.band, request.slo.ttft_s) == (2.0, Band.FLEX, 1.0)
    assert (request.arrival_s, request.expires_s, request.key_id) == (3.0, 7.0, "k")


def test_faster_keeps_requests_and_raises_the_rate() -> None:
    """Twice as fast is the same tokens in half the time."""
    workload = Workload(name="w", arrivals=[arrival(2.0), arrival(10.0)], duration_s=10.0)
    twice = workload.faster(2.0)
    assert [a.at_s for a in twice.arrivals] == [1.0, 5.0]
    assert twice.offered_tokens_per_s == pytest.approx(2 * workload.offered_tokens_per_s)


def test_all_at_once_chooses_evenly() -> None:
    """A sample comes from all over the workload, and all of it at the start."""
    arrivals = [arrival(float(n), num_prompt_tokens=n + 1) for n in range(10)]
    sample = Workload(name="w", arrivals=arrivals, duration_s=9.0).all_at_once(5)
    assert [a.num_prompt_tokens for a in sample.arrivals] == [1, 3, 5, 7, 9]
    assert {a.at_s for a in sample.arrivals} == {0.0}
