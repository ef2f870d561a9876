"""From settings to what a model is scheduled by; the engine is simulated, so no weights load."""

from __future__ import annotations

import pytest

from gateway.app.model_loading import load_model
from gateway.errors import StartupFailed
from gateway.settings import Settings
from scheduler.config import PRESETS


def test_settings_decide_how_a_scheduler_starts() -> None:
    """Policy, preset, loss, queue bound and prefix cache are those of the settings."""
    settings = Settings(
        engine="simulated",
        scheduler_policy="fcfs",
        scheduler_preset="low-latency",
        scheduler_max_throughput_loss=0.1,
        max_num_queued=7,
        prefix_caching=False,
    )
    config = load_model(settings, version="test").service.config
    assert config.fairness.policy == "fcfs"
    assert config.fairness.max_throughput_loss == 0.1
    assert config.composer == PRESETS["low-latency"].composer
    assert config.admission.max_num_queued == 7
    assert not config.prefix_caching


def test_without_settings_tenants_are_served_fairly() -> None:
    """The default is the virtual token counter in the mixed preset."""
    config = load_model(Settings(engine="simulated"), version="test").service.config
    assert config.fairness == PRESETS["mixed"].fairness
    assert config.fairness.policy == "vtc"
    assert config.composer == PRESETS["mixed"].composer


@pytest.mark.parametrize("name", ["policy", "preset"])
def test_a_policy_that_does_not_exist_stops_the_start(name: str) -> None:
    """One line names the setting and what could be chosen."""
    settings = Settings(engine="simulated", **{f"scheduler_{name}": "nope"})
    with pytest.raises(StartupFailed, match=rf"SLUICE_SCHEDULER_{name.upper()}: .*(vtc|mixed)"):
        load_model(settings, version="test")
