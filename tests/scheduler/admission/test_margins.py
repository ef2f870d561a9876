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


def test_who_is_heard_of_again_is_not_forgotten_first() -> None:
    """Whoever sends all the time stays, however long ago it came."""
    margins = Margins()
    for _ in range(32):
        margins.add((Band.DEFAULT, "old"), 1.0, 4.0)
    for number in range(2_000):
        margins.add((Band.DEFAULT, f"t{number}"), 1.0, 1.0)
        if not number % 500:
            margins.add((Band.DEFAULT, "old"), 1.0, 4.0)
    assert margins.margin_s((Band.DEFAULT, "old"), 1.0) == 3.0


def test_a_flood_does_not_go_on_making_others_careful() -> None:
    """What a tenant has missed once it has a record of its own says nothing of newcomers."""
    margins = Margins()
    for number in range(20):
        for turn in range(16):
            for _ in range(8):
                margins.add((Band.DEFAULT, "flood"), 1.0, 9.0)
            margins.add((Band.DEFAULT, f"t{number}"), 1.0, 1.1 + turn / 100)
    assert margins.margin_s((Band.DEFAULT, "flood"), 1.0) == 8.0
    assert margins.margin_s((Band.DEFAULT, "new"), 1.0) < 0.3


def test_queues_that_drain_faster_than_predicted_lower_no_prediction() -> None:
    """What is added to a prediction is never less than nothing."""
    margins = Margins()
    for _ in range(64):
        margins.add((Band.DEFAULT, "a"), 4.0, 1.0)
    assert margins.margin_s((Band.DEFAULT, "a"), 4.0) == 0.0
