"""Histograms and counts: what is shown of them is what was observed, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from gateway.telemetry.families import Family
from gateway.telemetry.series import OTHER, Counts, Histograms

BOUNDS = (0.1, 1.0, 10.0)
TIME = Family("x_seconds", "histogram", "A time.", ("class",))
COUNT = Family("x_total", "counter", "A count.", ("class",))
TIMES_BY_KIND = Family("y_seconds", "histogram", "A time.", ("kind", "who"))
COUNTS_BY_KIND = Family("y_total", "counter", "A count.", ("kind", "who"))


@given(st.lists(st.floats(0, 100) | st.sampled_from(BOUNDS)))
def test_a_histogram_counts_as_the_clients_own(values: list[float]) -> None:
    """Buckets, count and sum are those of prometheus_client's, a value on a bound included."""
    ours, registry = Histograms(TIME, BOUNDS, most=1), CollectorRegistry()
    theirs = Histogram("x_seconds", "A time.", ("class",), buckets=BOUNDS, registry=registry)
    child = theirs.labels("a")
    for value in values:
        ours.of("a").observe(value)
        child.observe(value)
    ours.of("a")
    [expected] = registry.collect()
    shown = {(s.name, s.labels.get("le")): s.value for s in ours.collect().samples}
    assert shown == {
        (s.name, s.labels.get("le")): s.value
        for s in expected.samples
        if not s.name.endswith("_created")
    }


def test_beyond_the_most_all_is_other() -> None:
    """However many values a label comes with, there are the first few and one for the rest."""
    times, counts = Histograms(TIME, BOUNDS, most=2), Counts(COUNT, most=2)
    for number in range(100):
        times.of(f"c{number}").observe(1.0)
        counts.add((f"c{number}",))
    rows = {s.labels["class"]: s.value for s in counts.collect().samples}
    assert rows == {"c0": 1, "c1": 1, OTHER: 98}
    counted = {s.labels["class"]: s.value for s in times.collect().samples if "count" in s.name}
    assert counted == rows


def test_what_does_not_fold_keeps_places_of_its_own() -> None:
    """What takes all places of one kind takes none of another's, and beyond them its kind stays."""
    times = Histograms(TIMES_BY_KIND, BOUNDS, most=2, folds=("who",))
    counts = Counts(COUNTS_BY_KIND, most=2, folds=("who",))
    for number in range(10):
        times.of("bad", f"w{number}").observe(1.0)
        counts.add(("bad", f"w{number}"))
    times.of("good", "w9").observe(1.0)
    counts.add(("good", "w9"))
    expected = {("bad", "w0"): 1, ("bad", "w1"): 1, ("bad", OTHER): 8, ("good", "w9"): 1}
    for family in (times, counts):
        assert {
            (s.labels["kind"], s.labels["who"]): s.value
            for s in family.collect().samples
            if s.name.endswith(("_count", "_total"))
        } == expected


def test_an_exemplar_stands_at_its_bucket() -> None:
    """The last kept trace of a bucket is shown there with its value, and nowhere else."""
    times = Histograms(TIME, BOUNDS, most=1)
    for trace_id, value in ((1, 0.5), (2, 0.7), (3, 50.0)):
        times.of("a").observe(value)
        times.of("a").exemplify(value, trace_id, 1000.0)
    shown = {s.labels.get("le"): s.exemplar for s in times.collect().samples if s.exemplar}
    assert {le: (one.labels["trace_id"], one.value) for le, one in shown.items()} == {
        "1.0": (f"{2:032x}", 0.7),
        "+Inf": (f"{3:032x}", 50.0),
    }
