"""Changes that are laid together, held against changes that are made one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.scheduler_policy import OperatorPolicy
from gateway.services.admin.scheduler_changes import changed_policy, is_same, merged
from gateway.services.admin.scheduler_config import changed
from scheduler.config import PRESETS, first_come


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


POLICIES = st.sampled_from(["vtc", "fcfs", "vtc/vtc/edf", "mlfq"])
CHANGES = some(
    preset=st.sampled_from(sorted(PRESETS)),
    policy=POLICIES,
    prefix_caching=st.booleans(),
    fairness=some(
        policy=POLICIES,
        band_shares=some(flex=st.sampled_from([0.01, 0.2]), default=st.just(0.3)),
        prices=some(input=st.integers(0, 9), output=st.integers(1, 9)),
        params=some(vtc=st.just({}), mlfq=st.just({})),
    ),
    composer=some(max_step_s=st.sampled_from([None, 0.05]), max_bypasses=st.integers(0, 9)),
    admission=some(max_num_queued=st.integers(1, 9), ttft_fraction=st.just(0.5)),
    preemption=some(min_run_steps=st.integers(0, 9)),
)


@given(st.lists(CHANGES, max_size=5))
def test_changes_laid_together_are_changes_made_in_turn(changes: list[dict[str, Any]]) -> None:
    """Whatever the settings below, one document does what all of them did."""
    for own in (PRESETS["mixed"], PRESETS["high-throughput"], first_come(max_num_queued=77)):
        document: dict[str, Any] = {}
        in_turn = own
        for change in changes:
            document, in_turn = merged(document, change), changed(in_turn, change)
            assert changed(own, document) == in_turn


@given(st.lists(st.tuples(st.one_of(st.none(), CHANGES), st.sampled_from([None, "a", "b"]))))
def test_a_change_of_all_reaches_models_that_have_their_own(
    changes: list[tuple[dict[str, Any] | None, str | None]],
) -> None:
    """What comes later wins, be it for one model or for all; a reset takes back what was before."""
    policy = OperatorPolicy()
    alone: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {}}
    for change, model in changes:
        policy = changed_policy(policy, change, model)
        for name in alone if model is None else [model]:
            alone[name] = {} if change is None else merged(alone[name], change)
        assert {name: policy.of(name) for name in alone} == alone


@pytest.mark.parametrize("changes", [{}, {"composer": {}}, {"fairness": {"params": {}}}, None])
def test_what_names_nothing_changes_nothing(changes: dict[str, Any] | None) -> None:
    """Nothing is set by it: neither is a version made, nor a record written."""
    assert is_same(changed_policy(OperatorPolicy(), changes, "a"), OperatorPolicy())
    assert is_same(changed_policy(OperatorPolicy(), changes, None), OperatorPolicy())
