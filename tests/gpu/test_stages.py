"""What there is to run, and what a stage of it publishes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.kernels import tuned
from engine.models.registry import known_architectures
from scheduler.bench.engine_bench import WORKLOADS
from scheduler.bench.part import Part
from scheduler.bench.report import Figure, at_least, update_report
from tests.gpu import publish
from tests.gpu.__main__ import _side_by_side, main, parse, run_one
from tests.gpu.asked import Asked
from tests.gpu.bench import STAGES, Stage, choose
from tests.gpu.calls import CALL_MINUTES, CALLS, Errand
from tests.gpu.conductor import MISSED
from tests.gpu.deadline import Deadline
from tests.gpu.publish import Publisher, read_results
from tests.gpu.shapes import MODELS
from tests.gpu.stages import PARTS, TUNED_KERNELS, list_stages
from tests.gpu.step_profiles import profile_path
from tests.gpu.tune_kernels import _CASES

ROOT = Path(__file__).parents[2]


def asked(device: str = "cuda", **narrowed: tuple[str, ...] | str | bool | Path) -> Asked:
    return Asked(device=device, deadline=Deadline(60), **narrowed)  # type: ignore[arg-type]


def test_bench_can_be_narrowed_down() -> None:
    """A model, a workload, or both are picked from the stages, and what none has is added."""
    assert choose(asked()) == list(STAGES)
    assert {stage.model for stage in choose(asked(models=("qwen3-4b",)))} == {"qwen3-4b"}
    assert {stage.workloads for stage in choose(asked(workloads=("peer",)))} == {("peer",)}
    large = Stage("qwen3-8b", ("1k1k",))
    both = choose(asked(models=("qwen3-8b",), workloads=("1k1k",)))
    assert both == [large, replace(large, fp8="both")]
    small = choose(asked(models=("qwen3-8b",), workloads=("1k1k",), fp8="kv"))
    assert small == [replace(large, fp8="kv")]
    assert choose(asked(models=("qwen3-4b",), workloads=("mixed",))) == [
        Stage("qwen3-4b", ("mixed",))
    ]


def test_stages_name_what_there_is() -> None:
    """Every stage of the bench is of a model that has a config, and of workloads that exist."""
    assert {stage.model for stage in STAGES} == set(MODELS)
    assert {workload for stage in STAGES for workload in stage.workloads} <= set(WORKLOADS)
    assert STAGES[-1].workloads == ("peer",)


def test_stage_of_the_bench_is_read_from_its_name() -> None:
    """A name says all that a process of its own has to know."""
    for stage in STAGES:
        assert Stage.of(stage.name) == stage
    assert len({stage.name for stage in STAGES}) == len(STAGES)


def test_parts_consist_of_all_that_there_is() -> None:
    """Each family and each kernel has a stage, and the most used family is the first."""
    _, *families = list_stages("correctness", asked())
    assert families[0] == "correctness:Qwen3ForCausalLM"
    assert set(families) == {f"correctness:{family}" for family in known_architectures()}
    assert {name.partition(":")[0] for name in TUNED_KERNELS} == set(_CASES)
    assert list_stages("tune", asked()) == [f"tune:{name}" for name in (*TUNED_KERNELS, "sizes")]
    assert list_stages("tune", asked("cpu")) == ["tune:sizes"]


def test_calls_fit_their_time() -> None:
    """What is prepared for a card names parts and models that exist, and has ten minutes."""
    for errands in CALLS.values():
        assert {errand.part for errand in errands} <= set(PARTS)
        assert sum(errand.minutes for errand in errands) <= CALL_MINUTES < 10
        for errand in errands:
            assert set(errand.models) <= set(MODELS)
            names = [f"{errand.part}:{name}" for name in errand.names]
            if errand.part == "bench":
                assert {name.split(":")[1] for name in names} <= set(MODELS)
            else:
                assert set(names) <= set(list_stages(errand.part, asked()))


def test_workload_that_is_not_there_yet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call leaves out what does not exist, says so, and lists the rest."""
    errands = (replace(CALLS[1][1], names=("qwen3-8b:nothing+nano", "qwen3-8b:nano")), CALLS[1][-1])
    monkeypatch.setitem(CALLS, 3, errands)
    assert main(["--call", "3", "--list"]) == 0
    output = capsys.readouterr()
    assert output.out.split() == ["bench:qwen3-8b:nano", "soak"]
    assert "bench:qwen3-8b:nothing+nano asks for a workload" in output.err


def test_checks_run_side_by_side_where_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """On many cores all of `correctness` is begun together; what times runs alone."""
    checks, timed = Errand(part="correctness", minutes=1.0), Errand(part="bench", minutes=1.0)
    for num_cores, expected in ((12, [["a", "b"]]), (11, [["a"], ["b"]])):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, n=num_cores: set(range(n)))
        assert _side_by_side(checks, ["a", "b"]) == expected
        assert _side_by_side(timed, ["a", "b"]) == [["a"], ["b"]]


def test_listing_loads_no_torch() -> None:
    """Who runs the stages has no part in what they load, and holds no GPU."""
    code = (
        "import sys; from tests.gpu.__main__ import main; "
        "main(['--list']); print({'torch', 'triton', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
    assert "bench:qwen3-0.6b:nano" in done.stdout


def test_options_are_passed_on() -> None:
    """A stage is asked for what the run was asked for."""
    options = asked("cpu", models=("a", "b"), workloads=("w",), fp8="kv", out=Path("/o")).options
    assert options[:3] == ["--device=cpu", "--model=a", "--model=b"]
    assert options[3:] == ["--workload=w", "--fp8=kv", "--out=/o"]
    assert asked(quick=True, eager=True).options == ["--device=cuda", "--quick", "--eager"]


def test_profiles_are_written_where_asked(tmp_path: Path) -> None:
    """A profile is called after its device and model, and `--out` moves it."""
    options = asked("cpu", out=tmp_path)
    assert profile_path(options, "qwen3-8b") == tmp_path / "profiles" / "engine-cpu-qwen3-8b.json"
    assert profile_path(replace(options, out=None), "qwen3-8b").parent == ROOT / "engine/profiles"


def test_stage_says_whether_a_goal_was_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is the last state of each title; an error is told apart from a missed goal."""
    good, bad = (Part({"x": at_least(value, 1, "s")}) for value in (1, 0))
    ends = {"met": [bad, good], "missed": [good, bad]}

    def state(stage: str, _: Asked) -> Iterator[tuple[str, Part]]:
        if stage == "broken":
            raise RuntimeError
        yield from (("title", part) for part in ends[stage])
        yield "another", good

    monkeypatch.setattr("tests.gpu.__main__.run_stage", state)
    options = ["--device", "cpu", "--minutes", "1", "--stage"]
    codes = [run_one(parse([*options, stage])) for stage in ("met", "missed", "broken")]
    assert codes == [0, MISSED, 1]


def test_settings_that_a_stage_found_launch_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tuning writes below `--out` is what the later stages of that run launch kernels with."""
    key, cpu = "d128-bfloat16", torch.device("cpu")
    better = {"BLOCK_N": 32, "num_warps": 2, "num_stages": 2}
    found = []

    def look(stage: str, asked: Asked) -> Iterator[tuple[str, Part]]:
        found.append(tuned.settings("decode_attention", key, cpu))
        directory = asked.tuned_settings
        tuned.save("decode_attention", key, cpu, better, directory=directory)
        yield from ()

    monkeypatch.setattr("tests.gpu.__main__.run_stage", look)
    monkeypatch.setattr(tuned, "_elsewhere", [])
    for stage in ("tune:decode_attention", "soak"):
        assert run_one(parse(["--stage", stage, "--out", str(tmp_path)])) == 0
    tuned.forget()
    assert found[0] != better
    assert found[1] == better
    assert [path.name for path in (tmp_path / "tuned_settings").iterdir()] == ["cpu.json"]


def test_eager_figures_stand_apart(tmp_path: Path) -> None:
    """Without graphs a figure has another name; speed has no goal then, and what is right has."""
    part = Part({"x_share": at_least(0.1, 0.5, "share")})
    for eager in (False, True):
        publisher = Publisher(asked=asked("cpu", eager=eager), directory=tmp_path)
        # True: nothing that has a goal misses it.
        assert publisher.publish("decode-sweep x", part) is eager
        assert publisher.publish("correctness x", part) is False
    report = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert set(report["figures"]) == {"x_share", "x_share_eager"}
    titles = {"decode-sweep x", "correctness x"}
    assert set(report["parts"]) == titles | {f"{title} eager" for title in titles}


def test_part_is_written_before_it_is_printed_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What grows is in the report and told at once; a person sees it when it is done."""
    results = tmp_path / "results"
    publisher = Publisher(asked=asked("cpu"), directory=tmp_path, results=results, commit="abc")
    part = Part({"x": Figure(1, "s")}, complete=False)
    publisher.publish("a", part)
    assert capsys.readouterr().out == ""
    report = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert report["parts"]["a"]["complete"] is False
    assert report["commit"] == "abc"
    assert [state["complete"] for state in read_results(results)] == [False]
    part.complete = True
    publisher.publish("a", part)
    assert "x: 1 s" in capsys.readouterr().out
    assert [state["complete"] for state in read_results(results)] == [True]


def test_report_elsewhere_goes_on_from_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report below `--out` has the figures that are kept, so that it can replace them."""
    kept, out = tmp_path / "kept", tmp_path / "out"
    monkeypatch.setattr(publish, "BENCHMARKS_DIR", kept)
    update_report("gpu-cpu", "before", {"x": Figure(1, "s")}, {}, directory=kept)
    publisher = Publisher(asked=asked("cpu"), directory=out)
    for title in ("one", "two"):
        publisher.publish(title, Part({title: Figure(2, "s")}))
    report = json.loads((out / "gpu-cpu.json").read_text())
    assert set(report["figures"]) == {"x", "one", "two"}
    assert set(json.loads((kept / "gpu-cpu.json").read_text())["figures"]) == {"x"}
