"""Boards, alerts and the scrape itself, with Debian's Prometheus beside a server with traffic."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.cli.admin_client import AdminAccess
from gateway.cli.observe import BOARDS, RULES, command_of, written_config
from helm.sluice.make_dashboards import BOARDS as MADE
from helm.sluice.make_dashboards import RATE, text
from tests.live_server import Server, start_server
from tests.made_stores import MadeStores
from tests.passable import passable_directory
from tests.trace_receiver import Receiver, receiving

# What traffic of seconds on a machine without a GPU cannot fill, and why.
MAY_BE_EMPTY = {
    "GPU busy": "there is no GPU",
    "GPU memory": "there is no GPU",
    "GPU power": "there is no GPU",
    "Jain's index": "shares are of a whole minute of work",
    "Tenants that are busy": "shares are of a whole minute of work",
    "Entitled to, of a class": "shares are of a whole minute of work",
    "Received, of a class": "shares are of a whole minute of work",
    "Refused by the scheduler": "its queue would have to be full",
}
_SCRAPE_S = 0.5
_WINDOW = "30s"


def exprs_of(board: Path) -> Iterator[tuple[str, str]]:
    """Yield the queries of a board with the titles of their panels."""
    for panel in json.loads(board.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace(RATE, _WINDOW)


def metrics_in(expr: str) -> set[str]:
    """Name the metrics of a query."""
    found = re.findall(r"\b(?:sluice|gen_ai|http_server)_[a-z0-9_]+(?=[{\[ )]|$)", expr)
    labels = {"gen_ai_operation_name", "gen_ai_request_model", "gen_ai_token_type"}
    return set(found) - labels


BOARD_FILES = sorted(BOARDS.glob("*.json"))


def test_boards_are_those_of_the_list() -> None:
    """Each board is what the script writes, and no other lies there."""
    assert {path.stem for path in BOARD_FILES} == set(MADE)
    for path in BOARD_FILES:
        assert path.read_text() == text(path.stem), path.name


@dataclass
class Observed:
    """Hold a server with traffic and a Prometheus that scrapes it."""

    server: Server
    prometheus: str
    scraped: str
    refused: set[str]
    traces: Receiver

    def query(self, expr: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": expr}).json()
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@pytest.fixture(scope="module")
def observed(made_stores: MadeStores) -> Iterator[Observed]:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("Debian's prometheus is not installed")
    with receiving() as traces, passable_directory() as parent:
        server = start_server(
            made_stores.copy(parent / "data"),
            SLUICE_MACHINE_USD_PER_HOUR="3.5",
            OTEL_EXPORTER_OTLP_ENDPOINT=traces.url,
        )
        try:
            with prometheus_of(server, parent) as url:
                refused = first_traffic(server)
                wait_scrapes(url)
                traffic(server)
                wait_scrapes(url)
                yield Observed(server, url, scrape(server), refused, traces)
        finally:
            assert server.stop() == 0


class prometheus_of:
    """Run Prometheus on a free port while entered."""

    def __init__(self, server: Server, parent: Path) -> None:
        directory = parent / "prometheus"
        directory.mkdir()
        access = AdminAccess(server.banner["admin"], server.banner["admin_token"])
        config = written_config(directory, access, interval=f"{int(1000 * _SCRAPE_S)}ms")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._listen = f"127.0.0.1:{free.getsockname()[1]}"
        subprocess.run(["promtool", "check", "config", config], check=True, capture_output=True)
        self._command = command_of("prometheus", config, self._listen)

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._command)
        url = f"http://{self._listen}"
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            assert self._process.poll() is None, "it has ended"
            try:
                if httpx.get(f"{url}/-/ready").is_success:
                    return url
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError("Prometheus did not come up")

    def __exit__(self, *raised: object) -> None:
        self._process.terminate()
        self._process.wait()


def wait_scrapes(url: str, number: int = 3) -> None:
    """Wait until so many more scrapes have come back."""

    def num_scrapes() -> float:
        params = {"query": "count_over_time(up[10m])"}
        [row] = httpx.get(f"{url}/api/v1/query", params=params).json()["data"]["result"] or [None]
        return 0.0 if row is None else float(row["value"][1])

    until_s, goal = time.monotonic() + 60, num_scrapes() + number
    while num_scrapes() < goal:
        assert time.monotonic() < until_s, "nothing is scraped"
        time.sleep(0.1)


def first_traffic(server: Server) -> set[str]:
    """Promise a tenant times, bound another, run a batch, and be refused; returns those ids."""
    promised = {"ttft_ms": 60_000, "tpot_ms": 100}
    with admin_client(server) as admin:
        answer = admin.patch("/admin/v1/tenants/acme", json=promised)
        assert answer.is_success, answer.text
        answer = admin.put("/admin/v1/quotas/tenant/globex", json={"rpm": 1, "daily_tokens": 30})
        assert answer.is_success, answer.text
    answers = [chat(server, place=1) for _ in range(3)]
    refused = {one.headers["x-request-id"] for one in answers if one.status_code == 429}
    assert refused
    run_batch(server)
    traffic(server)
    return {request_id.removeprefix("req_") for request_id in refused}


def traffic(server: Server) -> None:
    for number in range(4):
        assert chat(server, stream=bool(number % 2)).status_code == 200


def chat(server: Server, *, place: int = 0, stream: bool = False) -> httpx.Response:
    body = {
        "model": server.banner["model"],
        "messages": [{"role": "user", "content": "What is a tenant? Say it at some length."}],
        "max_tokens": 16,
        "stream": stream,
    }
    key = server.banner["keys"][place]["key"]
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{server.api}/chat/completions", json=body, headers=headers, timeout=60)


def run_batch(server: Server) -> None:
    body = {"model": server.banner["model"], "prompt": "A key", "max_tokens": 4}
    lines = [
        {"custom_id": f"i{n}", "method": "POST", "url": "/v1/completions", "body": body}
        for n in range(3)
    ]
    file = ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())
    order = {"endpoint": "/v1/completions", "completion_window": "24h"}
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(base_url=server.api, headers=headers, timeout=60) as client:
        made = client.post("/files", files={"file": file}, data={"purpose": "batch"}).json()
        batch = client.post("/batches", json=order | {"input_file_id": made["id"]}).json()
        until_s = time.monotonic() + 60
        while client.get(f"/batches/{batch['id']}").json()["status"] != "completed":
            assert time.monotonic() < until_s, "the batch did not end"
            time.sleep(0.1)


def admin_client(server: Server) -> httpx.Client:
    headers = {"authorization": f"Bearer {server.banner['admin_token']}"}
    return httpx.Client(base_url=server.banner["admin"], headers=headers)


def scrape(server: Server) -> str:
    with admin_client(server) as admin:
        answer = admin.get("/metrics")
    assert answer.is_success
    return answer.text


def test_promtool_finds_no_fault(observed: Observed) -> None:
    """Names, types and helps of what is scraped pass its lint; so do the rules."""
    lint = ["promtool", "check", "metrics"]
    found = subprocess.run(lint, input=observed.scraped, text=True, capture_output=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    subprocess.run(["promtool", "check", "rules", RULES], check=True, capture_output=True)


def test_what_boards_and_alerts_name_is_scraped(observed: Observed) -> None:
    """Each metric of a panel or a rule is one that the server exposes."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", observed.scraped, re.MULTILINE))
    parts = ("_bucket", "_sum", "_count")
    there = {
        name + part
        for name, kind in kinds.items()
        for part in (parts if kind == "histogram" else ("",))
    }
    rules = yaml.safe_load(RULES.read_text())["groups"]
    named = {rule["alert"]: rule["expr"] for group in rules for rule in group["rules"]}
    exprs = [*named.items(), *(pair for path in BOARD_FILES for pair in exprs_of(path))]
    assert len(exprs) > 60
    for title, expr in exprs:
        assert metrics_in(expr) <= there, title
        assert metrics_in(expr) or title == "SluiceDown", title


def test_no_panel_is_empty(observed: Observed) -> None:
    """Prometheus has an answer to every query of every board, but for those that say why not."""
    empty = {
        title
        for path in BOARD_FILES
        for title, expr in exprs_of(path)
        if not any(not math.isnan(float(row["value"][1])) for row in observed.query(expr))
    }
    assert empty <= set(MAY_BE_EMPTY)
    assert set(MAY_BE_EMPTY) <= {title for path in BOARD_FILES for title, _ in exprs_of(path)}


def test_alerts_are_evaluated(observed: Observed) -> None:
    """Each rule runs without an error, and a server that is well raises none that pages at once."""
    wait_scrapes(observed.prometheus)
    answer = httpx.get(f"{observed.prometheus}/api/v1/rules").json()
    rules = [rule for group in answer["data"]["groups"] for rule in group["rules"]]
    assert len(rules) >= 16
    assert {rule["health"] for rule in rules} == {"ok"}
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} == set()


def test_exemplars_reach_prometheus(observed: Observed) -> None:
    """A refused request's trace, whose id is the request's, is one that the receiver was sent."""
    now = time.time()
    params: dict[str, str | float] = {
        "query": 'http_server_request_duration_seconds_bucket{http_response_status_code="429"}',
        "start": now - 600,
        "end": now + 60,
    }
    answer = httpx.get(f"{observed.prometheus}/api/v1/query_exemplars", params=params).json()
    seen = {e["labels"]["trace_id"] for row in answer["data"] for e in row["exemplars"]}
    assert seen & observed.refused
    assert seen <= {trace_id.hex() for trace_id in observed.traces.traces()}
    [up] = observed.query('up{job="sluice"}')
    assert up["value"][1] == "1"


def test_a_scrape_needs_a_token(observed: Observed) -> None:
    """Whoever has none gets nothing."""
    assert httpx.get(f"{observed.server.banner['admin']}/metrics").status_code == 401
