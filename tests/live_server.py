"""A whole Sluice: the command, in a process of its own.

Most are forked where everything is imported already (`tests.warm_starts`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.warm_starts import WarmProcess, can_start_warm, start_warm

# Another checkout with a .venv of its own, to run the same attack on what was before.
TREE = os.environ.get("SOAK_TREE")
BIN = Path(TREE).absolute() / ".venv/bin" if TREE else Path(sys.executable).parent
SLUICE = BIN / "sluice"
START_TIMEOUT_S = 120


@dataclass
class Server:
    """Hold a running `sluice serve`, its banner and its data directory."""

    process: subprocess.Popen[str] | WarmProcess
    banner: dict[str, Any]
    data_dir: Path

    @property
    def api(self) -> str:
        return str(self.banner["api"])

    @property
    def key(self) -> str:
        return str(self.banner["keys"][0]["key"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the server and return its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the server's end and return its exit code."""
        code = self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()
        return code


def start_sluice(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    cold: bool = False,
    stderr: IO[Any] | None = None,
) -> subprocess.Popen[str] | WarmProcess:
    """Start a `sluice` command, warm where that can be; its output comes through a pipe."""
    if not cold and TREE is None and can_start_warm(env):
        return start_warm(command, env=env, cwd=cwd, stderr=stderr)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env, cwd=cwd
    )


def run_sluice(
    *words: str | Path, env: Mapping[str, str], cwd: Path | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a `sluice` command to its end. Raises: `CalledProcessError`, where it is to `check`."""
    command = [SLUICE, *words]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        files: dict[str, Any] = {"stdout": out, "stderr": err, "env": env}
        if TREE is None and can_start_warm(env):
            code = start_warm(command, cwd=cwd or Path.cwd(), **files).wait(START_TIMEOUT_S)
        else:
            code = subprocess.run(command, cwd=cwd, timeout=START_TIMEOUT_S, **files).returncode
        for file in (out, err):
            file.seek(0)
        done = subprocess.CompletedProcess(command, code, out.read(), err.read())
    if check:
        done.check_returncode()
    return done


def sluice_env(**extra: str) -> dict[str, str]:
    """Return this process's environment without settings of an outer Sluice.

    Several servers run at a time, so that the admin port is any free one.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    return kept | {"SLUICE_ADMIN_PORT": "0"} | extra


def start_server(data_dir: Path, *flags: str, cold: bool = False, **env: str) -> Server:
    """Start `sluice serve` on a free port and wait for its banner; `cold`, as a shell does.

    It has no balancer to wait for when it ends; `SLUICE_DRAIN_ACCEPT_S` gives it one.
    """
    command = [SLUICE, "serve", "--port", "0", "--data-dir", data_dir, "--banner", "json", *flags]
    env = {"SLUICE_DRAIN_ACCEPT_S": "0"} | env
    process = start_sluice(command, cold=cold, env=sluice_env(**env), cwd=data_dir.parent)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(START_TIMEOUT_S)
        raise AssertionError(f"no banner; exit code {process.returncode}")
    return Server(process, json.loads(line), data_dir)
