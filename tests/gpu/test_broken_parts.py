"""What breaks on a GPU takes nothing with it that was still to come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler.bench.drive import BenchError
from scheduler.bench.part import Part
from tests.gpu import bench
from tests.gpu.__main__ import PARTS, main
from tests.gpu.asked import Asked
from tests.gpu.deadline import Deadline


def test_other_parts_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that raises is shown and counts as missed, and the next one runs."""

    def break_down(asked: Asked) -> Iterator[tuple[str, Part]]:
        raise RuntimeError("no such kernel")

    def work(asked: Asked) -> Iterator[tuple[str, Part]]:
        yield "worked", Part()

    monkeypatch.setitem(PARTS, "tune", break_down)
    monkeypatch.setitem(PARTS, "soak", work)
    assert main(["--part", "tune", "--part", "soak", "--device", "cpu"]) == 1
    output = capsys.readouterr()
    assert "no such kernel" in output.err
    assert "worked" in output.out


def test_other_stages_of_the_bench_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that raises leaves the figures of the others, and the bench says so at its end."""

    def run_stage(stage: bench.Stage, asked: Asked) -> Iterator[tuple[str, Part]]:
        if stage == bench.STAGES[0]:
            raise RuntimeError("no memory")
        yield stage.model, Part()

    monkeypatch.setattr(bench, "_run_stage", run_stage)
    parts = bench.run(Asked(device="cuda", deadline=Deadline(60)))
    found = [next(parts) for _ in bench.STAGES[1:]]
    assert [model for model, _ in found] == [stage.model for stage in bench.STAGES[1:]]
    with pytest.raises(BenchError, match="1 stages"):
        next(parts)
