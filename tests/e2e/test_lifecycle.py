"""Starting and stopping, as an operator and a client see it."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live_server import SLUICE, Server, sluice_env, start_server

# Steps of this engine take 15 ms each, so that an answer of 900 tokens outlasts a drain.
SLOW = ("--engine", "simulated", "--engine-profile", "a100-llama-3-8b")


def read_stream(server: Server, max_tokens: int, started: threading.Event) -> list[str]:
    """Read one stream to its end; return its events."""
    body = {
        "model": "sluice-demo",
        "prompt": "x",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {server.key}"}
    events: list[str] = []
    with httpx.stream(
        "POST", f"{server.api}/completions", json=body, headers=headers, timeout=60
    ) as response:
        for line in response.iter_lines():
            if line:
                events.append(line.removeprefix("data: "))
                started.set()
    return events


def in_background(work: Callable[[], Any]) -> Callable[[], Any]:
    """Run `work` on a thread; the returned function waits for its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def result() -> Any:
        thread.join(60)
        assert results, "the client failed"
        return results[0]

    return result


def test_a_signal_lets_running_streams_end(data_dir: Path) -> None:
    """After SIGTERM a running stream is computed to its end, and the exit code is 0."""
    server = start_server(data_dir, *SLOW)
    started = threading.Event()
    events = in_background(lambda: read_stream(server, 100, started))
    assert started.wait(30)
    server.process.send_signal(signal.SIGTERM)
    assert events()[-1] == "[DONE]"
    assert server.wait() == 0


def test_readiness_is_withdrawn_while_streams_end(data_dir: Path) -> None:
    """While it drains, the process answers its probes: alive, not ready."""
    server = start_server(data_dir, *SLOW)
    started = threading.Event()
    events = in_background(lambda: read_stream(server, 200, started))
    assert started.wait(30)
    base = server.api.removesuffix("/v1")
    assert httpx.get(f"{base}/readyz").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while (ready := httpx.get(f"{base}/readyz")).status_code == 200:
        assert time.monotonic() < deadline
    assert ready.status_code == 503
    assert httpx.get(f"{base}/livez").status_code == 200
    assert events()[-1] == "[DONE]"
    assert server.wait() == 0


def test_a_second_signal_ends_streams_with_an_error_event(data_dir: Path) -> None:
    """Streams that are cut off are told so: an `error` event that says why, and no [DONE]."""
    server = start_server(data_dir, *SLOW)
    started = threading.Event()
    events = in_background(lambda: read_stream(server, 900, started))
    assert started.wait(30)
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    last = events()[-1]
    assert json.loads(last)["error"]["code"] == "shutting_down"
    assert server.wait() == 0


@pytest.mark.parametrize(
    ("toml", "env", "word"),
    [
        ("port = = 1", {}, "sluice.toml"),
        ("prot = 1", {}, "prot"),
        ("", {"SLUICE_ADMIN_PORT": "abc"}, "admin_port"),
        ("", {"SLUICE_BLOCK_SIZE": "17"}, "block_size"),
        ("", {"SLUICE_DATABASE_URL": "nonsense"}, "database"),
    ],
)
def test_bad_setting_is_one_line(tmp_path: Path, toml: str, env: dict[str, str], word: str) -> None:
    """A setting that cannot be read is named in one line; nothing starts."""
    (tmp_path / "sluice.toml").write_text(toml)
    done = subprocess.run(
        [SLUICE, "serve", "--port", "0", "--data-dir", tmp_path / "data"],
        env=sluice_env(**env),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert word in line.lower()
