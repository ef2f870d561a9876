"""Runs stages, each in a process of its own, and says in the end how they went.

One follows another, but for those that check and do not time: they run side by side, as most of
their time goes by while kernels are compiled.

A GPU that has failed stays so as long as the process, and a segfault, a hang or too little memory
end one: here they end a stage, and the next begins afresh. This process holds no GPU and measures
nothing. What a stage measures it writes itself, as it goes; it tells this process of it in a file,
for the table at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.deadline import Deadline
from tests.gpu.publish import read_results

ROOT = Path(__file__).parents[2]
# A stage looks at its time between two things, and is killed when it is so much over it.
_GRACE_S = 60.0
# With less than this left no stage is begun: it would only load.
_LEAST_S = 10.0
_TO_CLEAN_UP_S = 5.0
# With what a stage ends that missed a goal; with any other but 0 one that broke.
MISSED = 4


class Interrupted(Exception):
    """Tell that this process was asked to end, by which signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@dataclass(slots=True)
class Conductor:
    """Run stages until `end`, and gather what they told, how they broke and what had no time.

    `command` begins a stage; it is given the name, the options, the minutes and a file for results.
    """

    end: Deadline
    command: Sequence[str] = (sys.executable, "-m", "tests.gpu")
    results: list[dict[str, Any]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def run(self, stages: Sequence[str], options: Sequence[str], deadline: Deadline) -> None:
        """Run stages side by side with what is left of both times. Raises: `Interrupted`."""
        left_s = min(deadline.left_s, self.end.left_s - _TO_CLEAN_UP_S)
        if left_s < _LEAST_S:
            self.left_out += stages
            _say(f"no time for {', '.join(stages)}")
            return
        kill_s = min(left_s + _GRACE_S, self.end.left_s - _TO_CLEAN_UP_S)
        with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as scratch:
            begun = {
                stage: _begin(
                    [
                        *(*self.command, "--stage", stage, *options),
                        *(f"--minutes={left_s / 60}", f"--results={scratch}/{number}"),
                    ]
                )
                for number, stage in enumerate(stages)
            }
            _say(f"{', '.join(stages)} …")
            until = Deadline(kill_s)
            try:
                for stage, process in begun.items():
                    if how := _wait(process, until.left_s, kill_s):
                        self.broken.append(f"{stage}: {how}")
                        _say(f"{stage} broke: {how}")
            except Interrupted as exc:
                for name, process in begun.items():
                    if name == stage or process.poll() is None:
                        self.broken.append(f"{name}: {exc}")
                raise
            finally:
                for number, process in enumerate(begun.values()):
                    _end_group(process)
                    self.results += read_results(Path(scratch) / str(number))

    @property
    def met(self) -> bool:
        """Tell whether no stage broke, no figure misses its goal and nothing is left unchecked."""
        goals = (figure["met"] for state in self.results for figure in state["figures"].values())
        unchecked = any(stage.startswith("correctness") for stage in self.left_out)
        return not self.broken and not unchecked and all(met is not False for met in goals)

    def print_table(self) -> None:
        """Print the figures that have goals, then what broke, was cut short, or had no time."""
        write = sys.stdout.write
        write("\n")
        for state in self.results:
            for key, figure in state["figures"].items():
                if figure["goal"] is not None:
                    verdict = "met   " if figure["met"] else "MISSED"
                    value = f"{figure['value']:.4g} {figure['unit']}"
                    write(f"  {verdict}  {key}: {value}, goal {figure['goal']}\n")
        for state in self.results:
            if not state["complete"]:
                write(f"  CUT SHORT  {state['title']}\n")
        for line in self.broken:
            write(f"  BROKE  {line}\n")
        for stage in self.left_out:
            write(f"  NO TIME  {stage}\n")
        sys.stdout.flush()


def end_when_asked() -> None:
    """Turn the signals that ask this process to end into `Interrupted`."""

    def interrupt(number: int, _: object) -> None:
        # Once: what follows is the end.
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        signal.signal(number, interrupt)


def _begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Begin a command in a process group of its own."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, process_group=0)


def _wait(process: subprocess.Popen[bytes], left_s: float, given_s: float) -> str:
    """Wait for a command, and end all that it began; returns how it broke, or nothing."""
    try:
        code = process.wait(max(0.0, left_s))
    except subprocess.TimeoutExpired:
        # Where it hangs is printed by the process itself; see `tests.gpu.__main__`.
        process.send_signal(signal.SIGUSR1)
        return f"killed after {given_s:.0f} s"
    finally:
        _end_group(process)
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return "" if code in (0, MISSED) else "an error, see above"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End all that a stage has started, at first so that it can clean up."""
    if process.poll() is None:
        _signal_group(process, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TO_CLEAN_UP_S)
    _signal_group(process, signal.SIGKILL)
    # One that waits for a device in the kernel may not end even so.
    with suppress(subprocess.TimeoutExpired):
        process.wait(_TO_CLEAN_UP_S)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
