"""The servers that are measured, each in a process of its own, and the CPU time that they take.

CPU time is that of all threads of the process, from the kernel's scheduler, in nanoseconds; of the
gateway it holds the scheduler's and the simulated engine's, but not the private stores'.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx

from gateway.credentials import KEY_PREFIX
from gateway.domain.quota import Metric
from gateway.store.embedded import EmbeddedServers

# LiteLLM takes about a quarter of a minute to import itself.
_START_S: Final = 120.0
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


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
    redis_url: str | None = None
    metrics_url: str | None = None
    admin_headers: Mapping[str, str] = field(default_factory=dict)

    def num_traces(self) -> Mapping[str, int]:
        """Return what became of its requests' traces so far, by the gateway's own metrics."""
        assert self.metrics_url is not None
        told = httpx.get(self.metrics_url, headers=self.admin_headers).raise_for_status().text
        found = re.findall(r'^sluice_trace_requests_total\{\w+="(\w+)"\} (\S+)', told, re.MULTILINE)
        return {what: int(float(number)) for what, number in found}

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
def traced_subject(name: str, env: Mapping[str, str]) -> Iterator[Subject]:
    """Run the gateway with traces that go to an echo, by `env` beside where that is."""
    echo = [sys.executable, "-m", "gateway.bench.echo_server"]
    with _running(echo, {}) as (_, port):
        endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{int(port)}/echo"}
        with gateway_subject(name, {**endpoint, **env}) as subject:
            yield subject


@contextlib.contextmanager
def gateway_subject(
    name: str = "gateway", more_env: Mapping[str, str] = _NONE
) -> Iterator[Subject]:
    """Run the whole gateway on an engine that answers at once, every limit set, out of reach.

    Its stores are private to the bench and go with it.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        EmbeddedServers(Path(directory) / "valkey", postgres=False) as servers,
    ):
        command = [str(Path(sys.executable).parent / "sluice"), "serve", "--port", "0"]
        command += ["--admin-port", "0"]
        command += ["--engine", "simulated", "--engine-profile", "instant", "--banner", "json"]
        command += ["--data-dir", str(Path(directory) / "gateway")]
        env = {
            "SLUICE_DRAIN_ACCEPT_S": "0",
            "SLUICE_REDIS_URL": servers.redis_url(),
            "SLUICE_QUOTA_BUILD_S": "0",
            # A burst of the bench is no overload.
            "SLUICE_REDIS_TIMEOUT_S": "1",
            **more_env,
        }
        with _running(command, env) as (process, line):
            banner = json.loads(line)
            set_every_limit(banner)
            path = "/v1/chat/completions"
            headers = {"authorization": f"Bearer {banner['keys'][0]['key']}"}
            port = int(banner["api"].split(":")[2].split("/")[0])
            yield Subject(
                name,
                process.pid,
                port,
                path,
                path,
                headers,
                redis_url=servers.redis_url(),
                metrics_url=f"{banner['admin']}/metrics",
                admin_headers={"authorization": f"Bearer {banner['admin_token']}"},
            )


@contextlib.contextmanager
def litellm_subject(venv: Path) -> Iterator[Subject]:
    """Run LiteLLM's proxy out of its own environment, before a stub that answers at once.

    It checks one master key and counts nothing: no database, no Redis, no limits.
    """
    program = venv / "bin" / "litellm"
    if not program.exists():
        raise BenchError(f"there is no LiteLLM in {venv}")
    stub = [sys.executable, "-m", "gateway.bench.echo_server"]
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
        _running(stub, {}) as (_, stub_port),
    ):
        key, port = f"sk-{secrets.token_hex(24)}", _free_port()
        config = Path(directory) / "config.yaml"
        config.write_text(
            "model_list:\n  - model_name: sluice-demo\n    litellm_params:\n"
            f"      model: openai/stub\n      api_base: http://127.0.0.1:{int(stub_port)}/v1\n"
            "      api_key: sk-x\ngeneral_settings:\n  master_key: os.environ/LITELLM_MASTER_KEY\n"
        )
        command = [str(program), "--config", str(config), "--host", "127.0.0.1"]
        command += ["--port", str(port), "--num_workers", "1"]
        env = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_MASTER_KEY": key,
        }
        path = "/v1/chat/completions"
        headers = {"authorization": f"Bearer {key}"}
        with _listening_process(command, env, port) as process:
            yield Subject("litellm", process.pid, port, path, path, headers)


def set_every_limit(banner: Mapping[str, Any]) -> None:
    """Limit everything that a request of the first key passes, so high that nothing is refused."""
    key = banner["keys"][0]
    scopes = (
        f"key/{key['key'].removeprefix(KEY_PREFIX)[:12]}",
        f"tenant/{key['tenant']}",
        "organisation/-",
        "platform/-",
    )
    limits = {metric.value: 10**12 for metric in Metric}
    with httpx.Client(headers={"authorization": f"Bearer {banner['admin_token']}"}) as admin:
        for scope in scopes:
            answer = admin.put(f"{banner['admin']}/admin/v1/quotas/{scope}", json=limits)
            if not answer.is_success:
                raise BenchError(f"a limit could not be set: {answer.text}")


@contextlib.contextmanager
def _running(
    command: list[str], env: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server that prints one line once it serves."""
    if not Path("/proc/self/schedstat").exists():
        raise BenchError("CPU times are read from /proc/<pid>/schedstat, which is not here")
    ours = ("SLUICE_", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # A line a request, which it writes as anywhere, is not for whoever runs the bench.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**kept, **env}
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                said = log.read()[-1000:]
                raise BenchError(f"{' '.join(command[1:4])} did not start: {said}")
            yield process, line
        finally:
            process.terminate()
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


@contextlib.contextmanager
def _listening_process(
    command: list[str], env: Mapping[str, str], port: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server that says nothing, and wait until its port answers."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **env},
    )
    try:
        deadline_s = time.monotonic() + _START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise BenchError(f"{Path(command[0]).name} did not start")
            time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
