"""Keep the embedded servers alive exactly as long as the process that started them.

Run as a script of its own (`python -I -S supervisor.py SPEC PARENT_PID`), with a pipe to the
parent as standard input. It starts the servers as its children and then waits:

- the pipe closes, or the parent's pid is gone (killed by SIGKILL, or done): stop them and end;
- the parent wrote `ready` and a server ends by itself: start it again, a second later;
- a server ends before `ready`: stop the others and exit with 1; the parent reads the log.

It sits in a session of its own, so a Ctrl-C in the terminal reaches the parent alone, which
drains before it lets go of the database. If this process itself is killed, Linux signals the
servers (PR_SET_PDEATHSIG, set after the change of user, which would clear it; this process has
one thread, whose end is what the kernel watches). It imports nothing but the standard library,
and so has a loop of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

_READY_POLL_S, _POLL_S, _RESTART_DELAY_S = 0.05, 1.0, 1.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Say how one server is run, and by which signals it is stopped, each with its patience."""

    argv: list[str]
    directory: str
    log: str
    environment: dict[str, str]
    user: int | None
    group: int | None
    stop: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """List the servers in the order of their start, and what to delete when all have stopped."""

    servers: list[ServerSpec]
    remove: list[str]


def to_argument(spec: SupervisorSpec) -> str:
    """Write a spec as the script's argument."""
    return json.dumps(asdict(spec))


def main(spec: SupervisorSpec, parent_pid: int) -> int:
    """Run the servers until the parent is gone; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for server in spec.servers:
            running.append(_start(server))
        return _watch(spec, running, parent_pid)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for server, process in reversed(list(zip(spec.servers, running, strict=False))):
            _stop(server, process)
        for path in spec.remove:
            shutil.rmtree(path, ignore_errors=True)


def _watch(spec: SupervisorSpec, running: list[subprocess.Popen[bytes]], parent_pid: int) -> int:
    ready = False
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([0], [], [], _POLL_S if ready else _READY_POLL_S)
        if readable:
            if not os.read(0, 64):
                return 0
            ready = True
        for index, process in enumerate(running):
            if process.poll() is None:
                continue
            if not ready:
                return 1
            time.sleep(_RESTART_DELAY_S)
            running[index] = _start(spec.servers[index])
    return 0


def _start(server: ServerSpec) -> subprocess.Popen[bytes]:
    log = os.open(server.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            server.argv,
            cwd=server.directory,
            env=server.environment,
            user=server.user,
            group=server.group,
            extra_groups=[] if server.user is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            umask=0o077,
            # Safe here: this process has one thread.
            preexec_fn=_die_with_parent(server.stop[0][0]),
        )
    finally:
        os.close(log)


def _die_with_parent(stop_signal: int) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, stop_signal, 0, 0, 0) and None


def _stop(server: ServerSpec, process: subprocess.Popen[bytes]) -> None:
    for number, patience_s in server.stop:
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(timeout=patience_s)
            return
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()


def _from_argument(text: str) -> SupervisorSpec:
    raw = json.loads(text)
    return SupervisorSpec(
        servers=[ServerSpec(**server) for server in raw["servers"]], remove=raw["remove"]
    )


def script() -> Path:
    """Return the file to run."""
    return Path(__file__).resolve()


if __name__ == "__main__":
    sys.exit(main(_from_argument(sys.argv[1]), int(sys.argv[2])))
