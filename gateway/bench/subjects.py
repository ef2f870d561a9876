"""The servers that are measured, each in a process of its own, and the CPU time that they take.

CPU time is that of all threads of the process, from the kernel's scheduler, in nanoseconds; of the
gateway it holds the scheduler's and the simulated engine's, but not the private stores'.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


class BenchError(Exception):
    """The bench cannot be run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Know a running server: where it is asked what, and its process."""

    name: str
    pid: int
    port: int
    path: str
    stream_path: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """Add up the CPU time of the server's threads so far."""
        tasks = Path(f"/proc/{self.pid}/task")
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
        )


@contextlib.contextmanager
def echo_subject(*, is_guarded: bool) -> Iterator[Subject]:
    """Run the bare echo, on uvicorn's own protocol or the gateway's."""
    flags = ["--guarded"] if is_guarded else []
    command = [sys.executable, "-m", "gateway.bench.echo_server", *flags]
    with _running(command, {}) as (process, line):
        yield Subject(
            "guarded echo" if is_guarded else "echo", process.pid, int(line), "/echo", "/stream"
        )


@contextlib.contextmanager
def gateway_subject() -> Iterator[Subject]:
    """Run the whole gateway on a simulated engine, with private stores in a directory that goes."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        command = [str(Path(sys.executable).parent / "sluice"), "serve", "--port", "0"]
        command += ["--engine", "simulated", "--banner", "json", "--data-dir", directory]
        with _running(command, {"SLUICE_DRAIN_ACCEPT_S": "0"}) as (process, line):
            banner = json.loads(line)
            path = "/v1/chat/completions"
            headers = {"authorization": f"Bearer {banner['keys'][0]['key']}"}
            port = int(banner["api"].split(":")[2].split("/")[0])
            yield Subject("gateway", process.pid, port, path, path, headers)


@contextlib.contextmanager
def _running(
    command: list[str], env: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server that prints one line once it serves."""
    if not Path("/proc/self/schedstat").exists():
        raise BenchError("CPU times are read from /proc/<pid>/schedstat, which is not here")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**kept, **env})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"{' '.join(command[1:4])} did not start")
        yield process, line
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
