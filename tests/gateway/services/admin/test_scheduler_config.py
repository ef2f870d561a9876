"""Changing a scheduler's configuration in part, from decoded JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest
from gateway.services.admin.scheduler_config import BOUNDS, changed, numbers, plain, preset_of
from scheduler.config import (
    PRESETS,
    AdmissionConfig,
    ComposerConfig,
    FairnessConfig,
    Prices,
    SchedulerConfig,
)
from scheduler.policies.registry import policy_names
from scheduler.request import Band

CONFIG = SchedulerConfig(admission=AdmissionConfig(max_num_queued=7), prefix_caching=False)


def test_what_is_not_named_stays() -> None:
    """One number changes one number, however deep it lies."""
    assert changed(CONFIG, {}) == CONFIG
    assert changed(CONFIG, {"composer": {"max_step_s": 0.05}}) == replace(
        CONFIG, composer=replace(CONFIG.composer, max_step_s=0.05)
    )
    prices = Prices(input=CONFIG.fairness.prices.input, output=4.0)
    assert changed(CONFIG, {"fairness": {"prices": {"output": 4}}}).fairness.prices == prices
    shares = dict(CONFIG.fairness.band_shares) | {Band.FLEX: 0.25}
    assert changed(CONFIG, {"fairness": {"band_shares": {"flex": 0.25}}}) == replace(
        CONFIG, fairness=replace(CONFIG.fairness, band_shares=shares)
    )


def test_a_number_may_be_unset_where_it_can_be() -> None:
    """Null lifts a bound that may be lifted, and no other."""
    bounded = replace(CONFIG, composer=ComposerConfig(max_step_s=0.1))
    assert changed(bounded, {"composer": {"max_step_s": None}}).composer.max_step_s is None
    with pytest.raises(InvalidRequest):
        changed(CONFIG, {"composer": {"min_chunk_tokens": None}})


@pytest.mark.parametrize("policy", [*policy_names(), "vtc/vtc/edf", "fcfs/vtc/fcfs"])
def test_a_policy_is_set_by_its_name(policy: str) -> None:
    """`policy` is short for the field of fairness, and every registered one can be set."""
    assert changed(CONFIG, {"policy": policy}).fairness.policy == policy
    assert changed(CONFIG, {"fairness": {"policy": policy}}) == changed(CONFIG, {"policy": policy})


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_what_is_not_this_servers_own(preset: str) -> None:
    """A preset brings its numbers; policy, cache and the queue's bound stay as they were."""
    config = changed(changed(CONFIG, {"policy": "fcfs"}), {"preset": preset})
    assert config.composer == PRESETS[preset].composer
    assert config.admission == replace(PRESETS[preset].admission, max_num_queued=7)
    assert config.preemption == PRESETS[preset].preemption
    assert config.fairness.policy == "fcfs"
    assert not config.prefix_caching


@pytest.mark.parametrize("preset", PRESETS)
def test_a_configuration_is_known_by_its_preset(preset: str) -> None:
    """The preset is named whatever the policy is, until one of its numbers changes."""
    config = changed(CONFIG, {"preset": preset, "policy": "fcfs"})
    assert preset_of(config) == preset
    assert preset_of(changed(config, {"composer": {"max_bypasses": 17}})) is None


def test_a_section_is_laid_over_the_preset() -> None:
    """Named together, the preset comes first, in whatever order they were written."""
    config = changed(CONFIG, {"composer": {"min_chunk_tokens": 32}, "preset": "low-latency"})
    assert config.composer == replace(PRESETS["low-latency"].composer, min_chunk_tokens=32)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"nope": 1}, "nope"),
        ({"policy": "nope"}, "policy"),
        ({"policy": "vtc/nope/edf"}, "policy"),
        ({"policy": "vtc/edf"}, "policy"),
        ({"policy": None}, "policy"),
        ({"policy": 5}, "policy"),
        ({"preset": "nope"}, "preset"),
        ({"preset": None}, "preset"),
        ({"preset": ["mixed"]}, "preset"),
        ({"composer": 5}, "composer"),
        ({"composer": None}, "composer"),
        ({"composer": {"nope": 1}}, "composer.nope"),
        ({"composer": {"max_step_s": "fast"}}, "composer.max_step_s"),
        ({"composer": {"max_step_s": 0}}, "composer.max_step_s"),
        ({"composer": {"min_chunk_tokens": 1.5}}, "composer.min_chunk_tokens"),
        ({"composer": {"min_chunk_tokens": True}}, "composer.min_chunk_tokens"),
        ({"composer": {"dynamic_chunk": 1}}, "composer.dynamic_chunk"),
        ({"composer": {"kv_reserve": "none"}}, "composer.kv_reserve"),
        ({"composer": {"kv_quantile": float("nan")}}, "composer.kv_quantile"),
        ({"admission": {"max_num_queued": 0}}, "admission.max_num_queued"),
        ({"admission": {"max_num_queued": 10**400}}, "admission.max_num_queued"),
        ({"composer": {"max_step_s": 10**400}}, "composer.max_step_s"),
        ({"preemption": {"max_preemptions": -1}}, "preemption.max_preemptions"),
        ({"prefix_caching": "yes"}, "prefix_caching"),
        ({"fairness": {"policy": "nope"}}, "fairness.policy"),
        ({"fairness": {"max_throughput_loss": 0.95}}, "fairness.max_throughput_loss"),
        ({"fairness": {"prices": {"output": 0}}}, "fairness.prices.output"),
        ({"fairness": {"prices": {"output": -1}}}, "fairness.prices.output"),
        ({"fairness": {"prices": []}}, "fairness.prices"),
        ({"fairness": {"band_shares": 1}}, "fairness.band_shares"),
        ({"fairness": {"band_shares": {"express": 0.1}}}, "fairness.band_shares.express"),
        ({"fairness": {"band_shares": {"flex": "x"}}}, "fairness.band_shares.flex"),
        ({"fairness": {"band_shares": {"flex": -0.1}}}, "fairness.band_shares"),
        ({"fairness": {"band_shares": {"flex": 0.5, "default": 0.5}}}, "fairness.band_shares"),
        ({"fairness": {"params": {"nope": {}}}}, "fairness.params.nope"),
        ({"fairness": {"params": {"vtc": {"nope": 1}}}}, "fairness.params.vtc"),
        ({"fairness": {"params": {"vtc": 1}}}, "fairness.params.vtc"),
    ],
    ids=str,
)
def test_a_mistake_is_named(changes: dict[str, Any], param: str) -> None:
    """Each refusal says which field is wrong, by its whole path."""
    with pytest.raises(InvalidRequest) as refused:
        changed(CONFIG, changes)
    assert refused.value.param == param
    assert refused.value.message


def test_every_number_has_bounds_that_its_default_keeps() -> None:
    """No number of a configuration can be set without a check, and every preset passes them."""
    everything = SchedulerConfig(
        composer=ComposerConfig(max_num_batched_tokens=1, max_step_s=1.0),
        admission=AdmissionConfig(max_queued_tokens=1),
    )
    assert {path for path, _ in numbers(everything)} == set(BOUNDS)
    for preset in PRESETS.values():
        assert changed(preset, {}) == preset


def test_a_configuration_survives_json() -> None:
    """What is shown can be sent back as it is, and changes nothing."""
    config = replace(
        CONFIG, fairness=FairnessConfig(policy="fcfs/vtc/edf", params={"vtc": {}}, borrow_tokens=9)
    )
    shown = msgspec.json.decode(msgspec.json.encode(plain(config)))
    assert shown["fairness"]["band_shares"]["flex"] == config.fairness.band_shares[Band.FLEX]
    assert changed(SchedulerConfig(), shown) == config


def test_infinities_are_null() -> None:
    """JSON has no infinity: what never comes is null."""
    assert plain({"slack_s": float("inf"), "row": (1, Band.BATCH)}) == {
        "slack_s": None,
        "row": [1, "batch"],
    }
