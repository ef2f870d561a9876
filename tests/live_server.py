"""A whole Sluice as a stranger starts it: the command, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Another checkout with a .venv of its own, to run the same attack on what was before.
TREE = os.environ.get("SOAK_TREE")
BIN = Path(TREE).absolute() / ".venv/bin" if TREE else Path(sys.executable).parent
SLUICE = BIN / "sluice"
START_TIMEOUT_S = 120


@dataclass
class Server:
    """Hold a running `sluice serve`, its banner and its data directory."""

    process: subprocess.Popen[str]
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


def sluice_env(**extra: str) -> dict[str, str]:
    """Return this process's environment without settings of an outer Sluice.

    Several servers run at a time, so that the admin port is any free one.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    return kept | {"SLUICE_ADMIN_PORT": "0"} | extra


def start_server(data_dir: Path, *flags: str, **env: str) -> Server:
    """Start `sluice serve` on a free port and wait for its banner.

    It has no balancer to wait for when it ends; `SLUICE_DRAIN_ACCEPT_S` gives it one.
    """
    env = {"SLUICE_DRAIN_ACCEPT_S": "0"} | env
    command = [SLUICE, "serve", "--port", "0", "--data-dir", data_dir, "--banner", "json", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=sluice_env(**env), cwd=data_dir.parent
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(START_TIMEOUT_S)
        raise AssertionError(f"no banner; exit code {process.returncode}")
    return Server(process, json.loads(line), data_dir)
