"""Starting and stopping, as an operator and a client see it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.replica import free_port
from tests.live_server import SLUICE, Server, run_sluice, sluice_env, start_server

# Steps of this engine take 15 ms each, so that an answer of 900 tokens outlasts a drain.
SLOW = ("--engine", "simulated", "--engine-profile", "a100-llama-3-8b")


def request_of(server: Server, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """Return the arguments of a request for exactly `max_tokens` tokens."""
    body = {"model": "sluice-demo", "prompt": "x", "max_tokens": max_tokens, "ignore_eos": True}
    return {
        "url": f"{server.api}/completions",
        "json": body | fields,
        "headers": {"authorization": f"Bearer {server.key}"},
        "timeout": 60,
    }


def read_stream(
    server: Server, max_tokens: int, started: threading.Event, **fields: Any
) -> list[str]:
    """Read one stream to its end; return its events."""
    events: list[str] = []
    request = request_of(server, max_tokens, stream=True, **fields)
    with httpx.stream("POST", **request) as response:
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


def get(server: Server, path: str) -> httpx.Response:
    return httpx.get(server.api.removesuffix("/v1") + path)


def running_requests(server: Server) -> int:
    """Count what the server's scheduler runs."""
    token = json.loads((server.data_dir / "run/server.json").read_text())["local_token"]
    answer = httpx.get(
        f"{server.banner['admin']}/admin/v1/scheduler",
        headers={"authorization": f"Bearer {token}"},
    )
    return int(answer.json()["data"][0]["state"]["counts"]["running"])


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_signal_lets_running_streams_end(made_data_dir: Path) -> None:
    """After SIGTERM a running stream is computed to its end, and the exit code is 0."""
    server = start_server(made_data_dir, *SLOW)
    started = threading.Event()
    events = in_background(lambda: read_stream(server, 100, started))
    assert started.wait(30)
    server.process.send_signal(signal.SIGTERM)
    assert events()[-1] == "[DONE]"
    assert server.wait() == 0


def test_readiness_is_withdrawn_while_streams_end(made_data_dir: Path) -> None:
    """While it drains, the process answers its probes: alive, not ready."""
    server = start_server(made_data_dir, *SLOW)
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


def test_a_second_signal_ends_streams_with_an_error_event(made_data_dir: Path) -> None:
    """Streams that are cut off are told so: an `error` event that says why, and no [DONE]."""
    server = start_server(made_data_dir, *SLOW)
    started = threading.Event()
    events = in_background(lambda: read_stream(server, 900, started))
    assert started.wait(30)
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    assert json.loads(events()[-1])["error"]["code"] == "server_draining"
    assert server.wait() == 0


def test_survivors_of_the_grace_are_told(made_data_dir: Path) -> None:
    """At the end of the grace a stream gets a retryable error with its usage, an answer a 503."""
    server = start_server(made_data_dir, *SLOW, SLUICE_SHUTDOWN_GRACE_S="2")
    started = threading.Event()
    options = {"include_usage": True}
    events = in_background(lambda: read_stream(server, 900, started, stream_options=options))
    answer = in_background(lambda: httpx.post(**request_of(server, 900)))
    assert started.wait(30)
    wait_until(lambda: running_requests(server) == 2)
    server.process.send_signal(signal.SIGTERM)
    last = json.loads(events()[-1])
    assert last["error"]["type"] == last["error"]["code"] == "server_draining"
    assert last["error"]["retryable"] is True
    assert 0 < last["usage"]["completion_tokens"] < 900
    assert answer().status_code == 503
    assert answer().json()["error"]["code"] == "server_draining"
    assert "retry-after" in answer().headers
    assert server.wait() == 0


def test_work_is_taken_until_the_balancer_knows(made_data_dir: Path) -> None:
    """After SIGTERM new work is served for a while, on connections that close, then refused."""
    server = start_server(made_data_dir, *SLOW, SLUICE_DRAIN_ACCEPT_S="2")
    started = threading.Event()
    events = in_background(lambda: read_stream(server, 400, started))
    assert started.wait(30)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: get(server, "/readyz").status_code == 503)
    with httpx.Client() as client:
        taken = client.post(**request_of(server, 1))
        assert (taken.status_code, taken.headers["connection"]) == (200, "close")
        wait_until(lambda: client.post(**request_of(server, 1)).status_code == 503)
        refused = client.post(**request_of(server, 1))
    assert refused.json()["error"]["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["connection"] == "close"
    assert get(server, "/livez").status_code == 200
    assert events()[-1] == "[DONE]"
    assert server.wait() == 0


def test_ctrl_c_does_not_wait_for_a_balancer(made_data_dir: Path) -> None:
    """SIGINT skips the time in which work is still taken."""
    server = start_server(made_data_dir, *SLOW, SLUICE_DRAIN_ACCEPT_S="50")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(20) == 0
    server.wait()


def test_probes_answer_while_it_starts_and_a_signal_ends_it(data_dir: Path) -> None:
    """Both ports answer before there is anything to serve; a signal then is a clean end."""
    port = free_port()
    command = [SLUICE, "serve", "--port", str(port), "--data-dir", data_dir, "--banner", "json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=sluice_env(), cwd=data_dir.parent
    ) as process:
        base = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_listening(port))
        startup = httpx.get(f"{base}/startupz")
        assert (startup.status_code, startup.text) == (503, "store\n")
        assert httpx.get(f"{base}/livez").status_code == 200
        assert httpx.get(f"{base}/readyz").text == "starting\n"
        early = httpx.post(f"{base}/v1/completions", json={})
        assert (early.status_code, early.json()["error"]["code"]) == (503, "starting")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
    # Nothing of the abandoned start is in the way of the next.
    assert start_server(data_dir, *SLOW).stop() == 0


def test_a_killed_server_starts_again_at_once(made_data_dir: Path) -> None:
    """SIGKILL leaves nothing that keeps the next server from the same data, keys included."""
    killed = start_server(made_data_dir, *SLOW)
    assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    server = start_server(made_data_dir, *SLOW)
    assert "keys" not in server.banner, "the data of the killed server is gone"
    server.banner["keys"] = killed.banner["keys"]
    assert httpx.post(**request_of(server, 1)).status_code == 200
    assert server.stop() == 0


def test_the_admin_port_says_what_is_the_matter(made_data_dir: Path) -> None:
    """The public port answers a probe in a word; the admin port names each part."""
    server = start_server(made_data_dir, *SLOW)
    assert get(server, "/readyz").text == "ok\n"
    document = httpx.get(f"{server.banner['admin']}/readyz").json()
    assert document["status"] == "ok"
    names = {part["name"] for part in document["parts"]}
    assert {"serving", "engine", "store"} <= names
    steps = httpx.get(f"{server.banner['admin']}/startupz").json()["parts"]
    assert [(step["name"], step["ok"]) for step in steps] == [("store", True), ("model", True)]
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("toml", "env", "word"),
    [
        ("port = = 1", {}, "sluice.toml"),
        ("prot = 1", {}, "prot"),
        ("", {"SLUICE_ADMIN_PORT": "abc"}, "admin_port"),
        ("", {"SLUICE_BLOCK_SIZE": "17"}, "block_size"),
        ("", {"SLUICE_DATABASE_URL": "nonsense"}, "database"),
        ("", {"SLUICE_ADMIN_HOST": "0.0.0.0"}, "sluice_admin_allow_plain"),
    ],
)
def test_bad_setting_is_one_line(tmp_path: Path, toml: str, env: dict[str, str], word: str) -> None:
    """A setting that cannot be read is named in one line; nothing starts."""
    (tmp_path / "sluice.toml").write_text(toml)
    flags = ("--port", "0", "--data-dir", tmp_path / "data")
    done = run_sluice("serve", *flags, env=sluice_env(**env), cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert word in line.lower()
