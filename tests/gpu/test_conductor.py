"""What breaks on a GPU takes nothing with it that was measured, or was still to come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import conductor
from tests.gpu.conductor import MISSED, Conductor
from tests.gpu.deadline import Deadline

# A stage that tells of one figure and then does what its name says.
STAGE = """
import json, os, signal, subprocess, sys, time
name, results = sys.argv[sys.argv.index("--stage") + 1], sys.argv[-1].partition("=")[2]
figure = {"value": 1, "unit": "s", "goal": "<= 2", "met": name != "missing"}
with open(results, "a") as file:
    for complete in (False, name in ("good", "missing")):
        line = {"title": name, "complete": complete, "figures": {f"{name}_s": figure}}
        file.write(json.dumps(line) + "\\n")
    file.write("{ half a li")
sys.stderr.write(f"{name} speaks\\n")
if name == "missing":
    sys.exit(int(os.environ["MISSED"]))
if name == "segfault":
    os.kill(os.getpid(), signal.SIGSEGV)
if name == "error":
    sys.exit("no such kernel")
if name == "hang":  # for good
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
if name.startswith("meet"):
    meeting = os.environ["CHILDREN"]
    open(meeting + name, "w").close()
    other = "meet-b" if name == "meet-a" else "meet-a"
    while not os.path.exists(meeting + other):
        time.sleep(0.01)
if name in ("hang", "sleep"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(os.environ["CHILDREN"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(60)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("MISSED", str(MISSED))
    path = tmp_path / "stage.py"
    path.write_text(STAGE)
    return [sys.executable, "-S", str(path)]


def test_other_stages_run(
    command: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A stage that ends badly is named with how, keeps its figures, and the next one runs."""
    conducted = Conductor(Deadline(60), command)
    for stage in ("segfault", "error", "good"):
        conducted.run([stage], ["--device=cpu"], Deadline(30))
    conducted.print_table()
    assert conducted.broken == ["segfault: killed by SIGSEGV", "error: an error, see above"]
    assert not conducted.met
    output = capfd.readouterr()
    assert [line.split(maxsplit=1) for line in output.out.splitlines()[1:]] == [
        ["met", "segfault_s: 1 s, goal <= 2"],
        ["met", "error_s: 1 s, goal <= 2"],
        ["met", "good_s: 1 s, goal <= 2"],
        ["CUT", "SHORT  segfault"],
        ["CUT", "SHORT  error"],
        ["BROKE", "segfault: killed by SIGSEGV"],
        ["BROKE", "error: an error, see above"],
    ]
    assert "good speaks" in output.err


def test_stages_run_side_by_side(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are begun together wait for none of each other, and each is told of."""
    monkeypatch.setenv("CHILDREN", str(tmp_path / "at-"))
    conducted = Conductor(Deadline(60), command)
    conducted.run(["meet-a", "error", "meet-b"], [], Deadline(30))
    assert conducted.broken == ["error: an error, see above"]
    assert [state["title"] for state in conducted.results] == ["meet-a", "error", "meet-b"]


def test_goals_decide(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Stages that run to their ends are well where their figures meet their goals."""
    conducted = Conductor(Deadline(60), command)
    conducted.run(["good"], [], Deadline(30))
    assert conducted.met
    conducted.run(["missing"], [], Deadline(30))
    assert not conducted.met
    assert not conducted.broken
    conducted.print_table()
    assert "MISSED  missing_s" in capfd.readouterr().out


def test_stage_that_hangs_is_killed(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At its time a stage is killed with all that it has started, even if it will not hear."""
    children = tmp_path / "children"
    monkeypatch.setenv("CHILDREN", str(children))
    for name, seconds in (("_GRACE_S", 3.0), ("_LEAST_S", 0.0), ("_TO_CLEAN_UP_S", 0.2)):
        monkeypatch.setattr(conductor, name, seconds)
    conducted = Conductor(Deadline(60), command)
    conducted.run(["hang"], [], Deadline(0.1))
    assert conducted.broken == ["hang: killed after 3 s"]
    assert [state["title"] for state in conducted.results] == ["hang"]
    assert not any(is_alive(int(pid)) for pid in children.read_text().split())


def test_stage_without_time_is_named(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """What has no time is not begun; checks that were not made leave the run unfinished."""
    conducted = Conductor(Deadline(60), command)
    conducted.run(["bench:good"], [], Deadline(5))
    assert conducted.met
    conducted.run(["correctness:good"], [], Deadline(5))
    assert not conducted.met
    conducted = Conductor(Deadline(5), command)
    conducted.run(["good"], [], Deadline(30))
    conducted.print_table()
    assert conducted.left_out == ["good"]
    assert "NO TIME  good" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stage_ends_with_who_began_it(
    command: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    """Signals that end the run end its stage; those that can be heard leave the table."""
    code = (
        "import sys\n"
        "from tests.gpu.conductor import *\n"
        "end_when_asked()\n"
        f"conducted = Conductor(Deadline(60), {command!r})\n"
        "try: conducted.run(['sleep'], [], Deadline(60))\n"
        "except Interrupted as exc: conducted.print_table(); sys.exit(exc.number)\n"
    )
    stage, children, output = (tmp_path / name for name in ("stage.py", "children", "output"))
    stage.write_text(f"from tests.gpu.die_with_parent import *\ndie_with_parent()\n{STAGE}")
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=conductor.ROOT,
            env=os.environ | {"CHILDREN": str(children), "PYTHONPATH": str(conductor.ROOT)},
            stdout=file,
        )
    wait_until(lambda: children.exists() and children.read_text().count(" ") == 1)
    process.send_signal(number)
    heard = number != signal.SIGKILL
    assert process.wait(30) == (number if heard else -number)
    for line in ("CUT SHORT  sleep", f"BROKE  sleep: ended by {number.name}"):
        assert (line in output.read_text()) == heard
    stage_pid, child_pid = map(int, children.read_text().split())
    wait_until(lambda: not is_alive(stage_pid))
    # What a stage starts looks after itself where nobody else can.
    assert is_alive(child_pid) != heard
    if not heard:
        os.kill(child_pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Look again and again."""
    deadline = Deadline(timeout_s)
    while not condition():
        assert not deadline.passed
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Tell whether a process is there that is not merely waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
