"""Who has little waiting, whatever others have."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fakes
from fakes import Driver
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import Admit, Band, Sender

FLOOD, VICTIM = Sender(tenant_id="flood"), Sender(tenant_id="victim")


def crowded(
    num_requests: int, *, patience_s: float = 1e6, places: int = 100, **sender: object
) -> Scheduler:
    """A scheduler with so many requests of 200 tokens waiting, and none of the victim."""
    driver = Driver(fakes.make_engine(max_model_len=400, num_blocks=4000))
    config = first_come(max_num_queued=places)
    config = replace(config, fairness=replace(config.fairness, best_effort_ttft_s=patience_s))
    scheduler = Scheduler(driver.engine.info, config)
    for number in range(num_requests):
        request = fakes.make_request(f"r{number}", prompt=[1] * 200, tenant_id="flood")
        assert isinstance(scheduler.offer(replace(request, **sender), 0.0), Admit)  # type: ignore[arg-type]
    return scheduler


def test_who_has_nothing_waiting_is_light_beside_anything() -> None:
    """Of a queue that is full of one tenant's requests the other has none."""
    scheduler = crowded(60)
    assert not scheduler.is_light(FLOOD)
    assert scheduler.is_light(VICTIM)


@pytest.mark.parametrize(("num_requests", "is_light"), [(50, True), (51, False)])
def test_half_of_its_places_is_little(num_requests: int, is_light: bool) -> None:
    """Alone it may have half of all; its requests beyond that are refused first."""
    assert crowded(num_requests).is_light(FLOOD) == is_light


def test_a_share_is_smaller_beside_others() -> None:
    """Two tenants of one weight may have a quarter of the places each, and three quarters of half
    of them one that weighs three times the other.
    """
    scheduler = crowded(26)
    assert scheduler.is_light(FLOOD)
    scheduler.offer(fakes.make_request("v", tenant_id="victim"), 0.0)
    assert not scheduler.is_light(FLOOD)
    assert scheduler.is_light(replace(FLOOD, weight=3.0))


def test_tokens_count_beside_requests() -> None:
    """Few prompts that take longer to begin than anybody should wait are much."""
    assert not crowded(2, patience_s=1e-3).is_light(FLOOD)
    assert crowded(2, patience_s=1e3).is_light(FLOOD)


def test_an_organisation_counts_as_one() -> None:
    """A new tenant of an organisation that has much waiting has much waiting."""
    scheduler = crowded(60, organisation_id="many")
    assert not scheduler.is_light(replace(VICTIM, organisation_id="many"))
    assert scheduler.is_light(VICTIM)


def test_bands_are_apart() -> None:
    """What a tenant has in one band is not held against it in another."""
    scheduler = crowded(60, band=Band.FLEX)
    assert scheduler.is_light(FLOOD)
    assert not scheduler.is_light(replace(FLOOD, band=Band.FLEX))
