"""`sluice doctor` as a user runs it, beside a server and without one."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live_server import run_sluice, sluice_env, start_server


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def doctor(data_dir: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = ("doctor", "--data-dir", data_dir, *flags)
    return run_sluice(*words, env=sluice_env(**env), cwd=data_dir.parent)


def findings_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_a_running_server_is_asked_and_not_disturbed(data_dir: Path) -> None:
    """Beside a server its own stores are asked; after it, the same stores by themselves."""
    server = start_server(data_dir, "--engine", "simulated")
    port = server.api.rsplit(":", 1)[1].removesuffix("/v1")
    beside = doctor(data_dir, "--json", "--port", port)
    assert server.process.poll() is None
    assert server.stop() == 0
    after = doctor(data_dir, "--json", "--port", "0")
    assert (beside.returncode, after.returncode) == (0, 0), beside.stdout + after.stdout
    running, stopped = findings_of(beside), findings_of(after)
    assert "is ready" in running["server"]["found"]
    assert "our own" in running["port"]["found"]
    assert "none is running" in stopped["server"]["found"]
    for name in ("database", "redis"):
        assert running[name] == stopped[name]
        assert running[name]["level"] == "ok"
    assert "schema" in running["database"]["found"]


def test_what_is_broken_is_said_with_what_mends_it(data_dir: Path) -> None:
    """Each line begins with its mark; a broken one is followed by a command, and the code is 1."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        done = doctor(data_dir, "--port", str(sock.getsockname()[1]))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    [index] = [i for i, line in enumerate(lines) if line.startswith("✗")]
    assert lines[index].split()[1] == "port"
    assert "ss -ltnp" in lines[index + 1]
    assert all(line[0] in "✓!✗ " for line in lines)
    assert not data_dir.exists()


def test_a_bad_setting_is_wrong_usage(data_dir: Path) -> None:
    """A setting that cannot be read ends the doctor as it ends the server."""
    done = doctor(data_dir, SLUICE_BLOCK_SIZE="17")
    assert done.returncode == 2
    assert done.stderr.startswith("sluice: SLUICE_BLOCK_SIZE: ")
    assert done.stdout == ""
