"""The killer hits real processes: they die, sleep and wake, and it knows when they are back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.faults.killer import Killer
from tests.faults.replica import Replica, free_port, is_ready

# Answers /readyz only, and leaves a child in its process group.
_SERVER = """
import http.server, subprocess, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Ready)
open(sys.argv[2], "a").write(f"{subprocess.Popen(['sleep', '60']).pid}\\n")
server.serve_forever()
"""


@dataclass
class TinyReplica(Replica):
    """Run a server of ten lines in place of Sluice."""

    def start(self) -> None:
        command = [sys.executable, "-S", "-c", _SERVER, str(self.port), str(self.data_dir)]
        self.process = subprocess.Popen(command, start_new_session=True)

    @property
    def children(self) -> list[int]:
        return [int(line) for line in self.data_dir.read_text().split()]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    while is_alive(pid):
        await asyncio.sleep(0.01)


def test_killed_and_stopped_servers_come_back(tmp_path: Path) -> None:
    """SIGKILL and SIGTERM take the whole group, SIGSTOP lets it answer later."""
    server = TinyReplica(tmp_path / "children", free_port())

    async def scenario() -> None:
        async with asyncio.timeout(30):
            server.start()
            await server.wait_ready()
            killer = Killer(server, seed=1, delay_s=(0, 0.01), stopped_s=(0.05, 0.1))
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
                await killer.hit(number)
                assert await is_ready("127.0.0.1", server.port)
            assert killer.kills.exit_codes == [-signal.SIGKILL, -signal.SIGTERM]
            assert killer.kills.sent["SIGCONT"] == 1
            assert len(killer.kills.back_s) == 3
            first, second, third = server.children
            await gone(first)
            await gone(second)
            assert is_alive(third)

    try:
        asyncio.run(scenario())
    finally:
        server.send(signal.SIGKILL)
        assert server.process is not None
        server.process.wait(10)


def test_a_stopped_server_is_not_ready(tmp_path: Path) -> None:
    """The probe gives up on a server that accepts and says nothing."""
    server = TinyReplica(tmp_path / "children", free_port())

    async def scenario() -> None:
        server.start()
        await server.wait_ready()
        server.send(signal.SIGSTOP)
        assert not await is_ready("127.0.0.1", server.port, timeout_s=0.1)

    try:
        asyncio.run(scenario())
    finally:
        server.send(signal.SIGKILL)
        assert server.process is not None
        server.process.wait(10)


def test_hits_are_the_same_for_the_same_seed() -> None:
    """A run can be repeated: the signals and their order come from the seed."""

    class Recorder:
        def __init__(self) -> None:
            self.sent: list[signal.Signals] = []

        def start(self) -> None: ...

        def send(self, number: signal.Signals) -> None:
            self.sent.append(number)

        async def wait_ended(self, *, timeout_s: float = 0) -> int:
            return 0

        async def wait_ready(self, *, timeout_s: float = 0) -> float:
            return 0.0

    def sent(seed: int) -> list[signal.Signals]:
        server = Recorder()
        killer = Killer(server, seed=seed, delay_s=(0, 0), stopped_s=(0, 0))
        signals = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
        asyncio.run(killer.run(signals, rounds=12))
        return server.sent

    assert sent(1) == sent(1) != sent(2)
