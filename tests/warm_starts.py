"""Starting `sluice` commands by a fork: tests start hundreds, each in a hundredth of the time.

The very first start, and what a stranger's shell does, is tested by real ones: `tests/e2e` has the
documents' commands and the session's own server.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from tests.warm_process import MAX_BYTES

_ROOT: Final = Path(__file__).resolve().parents[1]
# Read when something is imported, which is long past.
_OF_IMPORTS: Final = ("PYTHON", "OMP_", "LD_", "MALLOC", "TORCH", "CUDA", "TOKENIZERS_")


class WarmProcess:
    """Do what a `subprocess.Popen` does, for a process that was forked elsewhere."""

    def __init__(self, pid: int, ended: int, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises: `subprocess.TimeoutExpired`."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self._look(0.5)) is None:
            if until is not None and time.monotonic() > until:
                assert timeout is not None
                raise subprocess.TimeoutExpired("sluice", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, wait_s: float) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._ended], [], [], wait_s)[0]:
                said = os.read(self._ended, 16)
                os.close(self._ended)
                assert said, "what forks processes is gone"
                self.returncode = int(said)
            return self.returncode


def can_start_warm(env: Mapping[str, str]) -> bool:
    """Tell whether a fork would be as a start: within pytest, and with what imports read here."""
    ours, its = (
        {name: value for name, value in one.items() if name.startswith(_OF_IMPORTS)}
        for one in (os.environ, env)
    )
    return "PYTEST_VERSION" in os.environ and ours == its


def start_warm(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: IO[Any] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    start_new_session: bool = False,
) -> WarmProcess:
    """Start a `sluice` command; without a `stdout`, the process has a pipe for it."""
    asked = {
        "command": [str(word) for word in command],
        "env": dict(env),
        "cwd": str(cwd),
        "new_session": start_new_session,
    }
    line = json.dumps(asked).encode()
    assert len(line) < MAX_BYTES
    ended, tells = os.pipe2(os.O_CLOEXEC)
    reads, writes = (None, stdout) if stdout is not None else _pipe()
    files = [0 if stdin is None else stdin.fileno(), writes.fileno()]
    files += [2 if stderr is None else stderr.fileno(), tells]
    control, lock = _forker()
    with lock:
        socket.send_fds(control, [line], files)
        pid = int(control.recv(16))
    os.close(tells)
    if reads is not None:
        writes.close()
    return WarmProcess(pid, ended, reads)


def _pipe() -> tuple[IO[str], IO[str]]:
    reads, writes = os.pipe2(os.O_CLOEXEC)
    return os.fdopen(reads), os.fdopen(writes, "w")


@cache
def _forker() -> tuple[socket.socket, threading.Lock]:
    """Start what forks, once for all of this process's tests; it ends with this."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.warm_process", str(its.fileno())],
        cwd=_ROOT,
        pass_fds=[its.fileno()],
        start_new_session=True,
    )
    its.close()

    def end() -> None:
        ours.close()
        process.wait(60)

    atexit.register(end)
    return ours, threading.Lock()
