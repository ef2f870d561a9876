"""How much room predictions are left, by how far those of each tenant were off."""

from __future__ import annotations

from scheduler.admission.margins import Margins
from scheduler.request import Band


def test_who_was_not_heard_of_for_longest_is_forgotten() -> None:
    """Of more than a thousand tenants the last ones keep what is known of them alone."""
    margins = Margins()

    def hear(tenant: str, *, late_s: float = 0.0, times: int = 1) -> None:
        for _ in range(times):
            margins.add((Band.DEFAULT, tenant), 1.0, 1.0 + late_s)

    hear("gone", late_s=2.0, times=32)
    hear("stays", late_s=3.0, times=32)
    for number in range(1_022):
        hear(f"t{number}")
    hear("stays", late_s=3.0)
    hear("newcomer")
    assert margins.margin_s((Band.DEFAULT, "stays"), 1.0) == 3.0
    assert margins.margin_s((Band.DEFAULT, "gone"), 1.0) == 0.0, "as those that all share"
