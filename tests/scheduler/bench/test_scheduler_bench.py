"""`sluice bench scheduler`, whole, at the smallest size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.bench.scheduler_bench import Load, SchedulerBenchOptions, main
from scheduler.request import Band

SMALL = [
    "--running",
    "4",
    "--queued",
    "10,20,40",
    "--tenants",
    "5",
    "--steps",
    "30",
    "--spike",
    "300",
]


def test_report_has_its_figures_and_growth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed as JSON is what is written; goals are held to the middle queue."""
    assert main([*SMALL, "--rounds", "2", "--json", "--out", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    report = json.loads((tmp_path / "scheduler.json").read_text())
    assert report["figures"] == printed["figures"]
    figures = report["figures"]
    assert figures["plan_report_p50_us"]["goal"] == "<= 200"
    assert figures["plan_report_p99_us"]["goal"] == "<= 600"
    assert figures["plan_report_p50_us"]["value"] == figures["plan_report_20_p50_us"]["value"] > 0
    assert figures["growth"]["value"] > 0
    assert figures["growth"]["goal"] == "<= 1.3"
    assert figures["plan_report_held_p50_us"]["value"] > 0
    for name in (
        "offer_beside_keys",
        "plan_with_expired",
        "plan_with_followers",
        "offer_long_prompt",
    ):
        assert figures[f"{name}_p50_us"]["goal"] == "<= 1000"
        assert figures[f"{name}_p50_us"]["value"] > 0
    samples = report["samples"]["plan and report"]
    assert len(samples["40"]) == 2
    assert samples["40"][0]["offer_us"]["p50"] > 0
    assert samples["conditions"]["gc_enabled"]


def test_a_person_gets_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is on stdout, and progress and the place of the report are not."""
    assert main([*SMALL, "--rounds", "1", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "20 queued" in out
    assert "figures are in" in err


def test_load_is_steady_and_mixed() -> None:
    """Rows stay taken and the queue at its size, while requests end and others come."""
    options = SchedulerBenchOptions(running=8, tenants=10, steps=1)
    load = Load(options, 50)
    assert len({request.tenant_id for _, request in load.live.values()}) == 11
    for _ in range(400):
        load.step()
        snapshot = load.scheduler.snapshot()
        assert snapshot.running + snapshot.queued == 58
    assert snapshot.running >= 5
    assert snapshot.num_finished >= 8
    live = [request for _, request in load.live.values()]
    assert len({request.weight for request in live}) == 4
    assert {request.band for request in live} == set(Band) - {Band.DUE}
    assert len({request.slo for request in live}) == 3
    assert load.now > 0


@pytest.mark.parametrize("wrong", [["--queued", "1"], ["--steps", "0"], ["--rounds", "x"]])
def test_wrong_sizes_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A size that cannot be measured names its option and measures nothing."""
    with pytest.raises(SystemExit) as caught:
        main(wrong)
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err
