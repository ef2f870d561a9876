"""`sluice simulate`: data on stdout, progress on stderr, exit codes that mean something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from scheduler.bench.report import Figure, at_most
from scheduler.simulator import suites
from scheduler.simulator.suite import OnRun, Suite, SuiteResult
from tests.live_server import run_sluice, sluice_env

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "examples" / "traces" / "servegen_m-small_excerpt.csv"
CONTEST = TRACE.parent / "contest.csv"
NAMED = {
    "ttft_s",
    "tpot_s",
    "max_gap_s",
    "refusals",
    "expired",
    "cancelled",
    "preemptions",
    "service_share",
    "entitled_share",
}


def sluice(*args: object) -> subprocess.CompletedProcess[str]:
    return run_sluice("simulate", *map(str, args), env=sluice_env(), cwd=ROOT)


def test_json_is_on_stdout_and_progress_on_stderr(tmp_path: Path) -> None:
    """One JSON document with the promised names; the chart is drawn beside it."""
    chart = tmp_path / "out.svg"
    done = sluice("--trace", TRACE, "--limit", 200, "--load", 0.5, "--seed", 3, "--policy", "fcfs",
                  "--json", "--plot", chart)  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["policy"], document["load"], document["seed"]) == ("fcfs", 0.5, 3)
    assert (document["requests"], document["completed"]) == (200, 200)
    assert document.keys() >= {"tokens_per_s", "goodput_rps", "jain", "service_difference"}
    assert "200/200" in done.stderr
    svg = chart.read_text()
    assert all(title in svg for title in ("<svg", "Service by tenant", "TTFT", "Waiting"))


def test_progress_ends_where_all_requests_have() -> None:
    """Those whose clients left, and those that were refused, are done as well."""
    done = sluice("--trace", CONTEST, "--load", 3, "--json")
    document = json.loads(done.stdout)
    assert document["completed"] < document["requests"]
    assert f"100% {document['requests']}/{document['requests']}" in done.stderr


def test_report_is_for_people(tmp_path: Path) -> None:
    """Without --json there are tables; tenants have the weights of their file."""
    tiers = tmp_path / "tenants.toml"
    tiers.write_text('[[tier]]\nclients = ["41"]\nweight = 7\nttft_s = 5\n')
    done = sluice("--trace", TRACE, "--limit", 200, "--tenants", tiers, "--max-tokens", 4096)
    assert done.returncode == 0, done.stderr
    assert "200 of 200 requests completed" in done.stdout
    [row] = [line.split() for line in done.stdout.splitlines() if line.startswith("41 ")]
    assert row[1] == "7"


def test_own_trace_runs_on_a_machine_of_a_file(tmp_path: Path) -> None:
    """Each tenant has what the documentation names, on the machine that was asked for."""
    machine = tmp_path / "half.json"
    machine.write_text('{"like": "a100-llama-3-8b", "num_blocks": 12800}')
    done = sluice("--trace", CONTEST, "--machine", machine, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["machine"] == "half"
    assert {tenant["tenant"] for tenant in document["tenants"]} == {"chat", "documents", "agents"}
    for tenant in document["tenants"]:
        assert tenant.keys() >= NAMED


@pytest.mark.parametrize(
    ("args", "code", "complaint"),
    [
        ((), 2, "either --trace FILE or --suite NAME"),
        (("--trace", TRACE, "--suite", "vtc"), 2, "either --trace FILE or --suite NAME"),
        (("--trace", "nowhere.csv"), 3, "no file nowhere.csv"),
        (("--trace", "README.md"), 2, "not a trace"),
        (("--trace", TRACE, "--machine", "pyproject.toml"), 2, "pyproject.toml"),
        (("--trace", TRACE, "--policy", "nonsense"), 2, "nonsense"),
        (("--trace", TRACE, "--tenants", "nowhere.toml"), 2, "nowhere.toml"),
        (("--trace", TRACE, "--plot", "out.gif"), 2, "--plot draws to .svg"),
        (("--trace", TRACE, "--plot", "nowhere/out.svg"), 3, "no directory nowhere"),
        (("--suite", "nonsense"), 2, "no suite 'nonsense': choose one of vtc"),
    ],
)
def test_wrong_usage_is_one_line_and_a_code(
    args: tuple[object, ...], code: int, complaint: str
) -> None:
    """What is wrong is said on stderr in a line, and nothing is printed."""
    done = sluice(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sluice: ")


def test_a_suite_that_nobody_timed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is made up: the first run of a suite tells what is left."""
    untimed = Suite(1, lambda on_run: SuiteResult(header=("",)), "small")
    monkeypatch.setattr(suites, "suites", lambda: {"small": untimed})
    result = CliRunner().invoke(app, ["simulate", "--suite", "small"])
    assert result.stderr.startswith(
        "suite small: 1 runs, and the time left is told after the first"
    )


def test_command_line_loads_nothing_of_the_simulator() -> None:
    """Help and the other commands pay nothing for the simulator, numpy or matplotlib."""
    code = (
        "import sys, gateway.cli.commands; "
        "print(*({'numpy', 'matplotlib', 'scheduler.simulator', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (3.0, 1)])
def test_suite_fails_where_a_goal_is_missed(
    value: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A suite prints its table, its figures and their goals, writes a report, and may fail."""

    def run(on_run: OnRun) -> SuiteResult:
        on_run("only")
        figures = {"wait_s": at_most(value, 2.0, "s"), "rate": Figure(5.0, "requests/s")}
        return SuiteResult(figures, {"raw": [value]}, ("", "wait"), [("only", f"{value} s")])

    monkeypatch.setattr(suites, "suites", lambda: {"small": Suite(1, run, "small", about_s=150)})
    for args in ([], ["--json", "--out", str(tmp_path)]):
        result = CliRunner().invoke(app, ["simulate", "--suite", "small", *args])
        assert result.exit_code == code
        first, *_, last = result.stderr.splitlines()
        assert first == "suite small: 1 runs, about 2 min on a core of its own"
        if not args:
            assert last.startswith("suite small 100% 1/1, ")
        if not args:
            assert f"only  {value} s" in result.stdout
            assert ("met" if code == 0 else "missed") in result.stdout
            continue
        document = json.loads(result.stdout)
        assert document["figures"]["wait_s"]["met"] is (code == 0)
        assert document["samples"] == {"raw": [value]}
    report = json.loads((tmp_path / "small.json").read_text())
    assert report["figures"]["rate"] == {
        "value": 5.0, "unit": "requests/s", "goal": None, "met": None
    }  # fmt: skip
