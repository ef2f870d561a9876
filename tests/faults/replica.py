"""One `sluice serve` in a process group of its own, on ports that stay the same over restarts."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.live_server import SLUICE, TREE, sluice_env
from tests.warm_starts import WarmProcess, can_start_warm, start_warm

_POLL_S: Final = 0.05
_FIRST_PORT: Final = 10_000
_PORTS_EACH: Final = 2_000
# `python -m` would look into the working directory first.
_MAIN: Final = "from gateway.cli.main import main; main()"
_given: set[int] = set()


@dataclass
class Replica:
    """Start, signal and probe one server. Its log is `<data_dir>.log`, its host 127.0.0.1.

    `tree` is the source of another release, which then runs instead of this one.
    """

    data_dir: Path
    port: int
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | WarmProcess | None = None
    tree: Path | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; it is not ready yet."""
        assert not self.is_running
        command = [str(SLUICE)] if self.tree is None else [sys.executable, "-c", _MAIN]
        command += ["serve", "--port", str(self.port), "--banner", "json"]
        command += ["--data-dir", str(self.data_dir), *self.flags]
        env = sluice_env(**self.env, **_first_in_path(self.tree))
        is_warm = self.tree is None and TREE is None and can_start_warm(env)
        start = start_warm if is_warm else subprocess.Popen
        with open(f"{self.data_dir}.log", "ab") as log:
            self.process = start(
                command,
                stdout=log,
                stderr=log,
                env=env,
                cwd=self.data_dir.parent,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        """Signal the whole process group; a group that is gone is no error."""
        if self.is_running:
            assert self.process is not None
            os.killpg(self.process.pid, number)

    async def wait_ended(self, *, timeout_s: float = 60.0) -> int:
        """Wait for the process's end and return its exit code. Raises: `TimeoutError`."""
        assert self.process is not None
        async with asyncio.timeout(timeout_s):
            while (code := self.process.poll()) is None:
                await asyncio.sleep(_POLL_S)
        return code

    async def wait_ready(self, *, timeout_s: float = 60.0) -> float:
        """Wait until `/readyz` says yes; return the seconds that took. Raises: `TimeoutError`."""
        started = time.monotonic()
        async with asyncio.timeout(timeout_s):
            while not await is_ready("127.0.0.1", self.port):
                assert self.is_running, f"the server ended: {self._last_words()}"
                await asyncio.sleep(_POLL_S)
        return time.monotonic() - started

    def _last_words(self) -> str:
        return Path(f"{self.data_dir}.log").read_text()[-1000:]


def _first_in_path(tree: Path | None) -> dict[str, str]:
    return {} if tree is None else {"PYTHONPATH": str(tree)}


async def is_ready(host: str, port: int, *, timeout_s: float = 1.0) -> bool:
    """Ask `/readyz` once, on a connection of its own."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n")
                return (await reader.readline()).split(b" ")[1:2] == [b"200"]
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False


def free_port() -> int:
    """Find a port that nobody listens on now, nor will before it is used.

    It is below those that the kernel gives to connections, any of which could take it while its
    server is away. Tests that run beside each other draw from ranges of their own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST_PORT + _PORTS_EACH * worker
    while True:
        port = random.randrange(first, first + _PORTS_EACH)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
