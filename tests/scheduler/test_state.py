"""What a scheduler says of itself: whom each band knows, and what each has a right to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.config import PRESETS
from scheduler.core import Scheduler
from tests import fakes

TENANTS = (("a", 3.0, "", 1.0), ("b", 1.0, "one", 2.0), ("c", 3.0, "one", 2.0))


def scheduler() -> Scheduler:
    """Have two requests of each tenant wait, and five of the last."""
    made = Scheduler(fakes.make_engine().info, PRESETS["mixed"])
    for name, weight, organisation, organisation_weight in TENANTS:
        for number in range(5 if name == "c" else 2):
            request = fakes.make_request(f"{name}{number}", tenant_id=name, weight=weight)
            made.offer(
                replace(
                    request,
                    organisation_id=organisation,
                    organisation_weight=organisation_weight,
                ),
                0.0,
            )
    return made


def test_a_tenant_is_entitled_to_its_part_of_what_its_organisation_is() -> None:
    """A lone tenant stands beside organisations by weight, and within one its tenants do."""
    [band] = scheduler().state(0.0).bands
    entitled = {tenant.tenant_id: tenant.entitled for tenant in band.tenants}
    assert entitled == pytest.approx({"a": 0.6, "b": 0.1, "c": 0.3})
    assert {tenant.tenant_id: tenant.organisation_id for tenant in band.tenants} == {
        "a": "",
        "b": "one",
        "c": "one",
    }


def test_the_busiest_are_described_alone() -> None:
    """Where so many are asked for, those with the most requests are told of, entitled as before."""
    [band] = scheduler().state(0.0, max_tenants=1).bands
    [tenant] = band.tenants
    assert (tenant.tenant_id, tenant.queued) == ("c", 5)
    assert tenant.entitled == pytest.approx(0.3)
    assert band.queued == 9


def test_who_has_no_work_takes_nothing_from_who_has() -> None:
    """An idle tenant is entitled to nothing, and its part is its siblings', then everybody's."""
    made = scheduler()
    for number in range(5):
        made.cancel(f"c{number}", 1.0)
    [band] = made.state(1.0).bands
    entitled = {tenant.tenant_id: tenant.entitled for tenant in band.tenants}
    assert entitled["a"] == pytest.approx(0.6)
    assert entitled["b"] == pytest.approx(0.4)
    assert entitled.get("c", 0.0) == 0.0
    for number in range(2):
        made.cancel(f"b{number}", 1.0)
    [band] = made.state(1.0).bands
    entitled = {tenant.tenant_id: tenant.entitled for tenant in band.tenants}
    assert entitled["a"] == pytest.approx(1.0)
