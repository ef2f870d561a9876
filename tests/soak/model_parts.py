"""The part of `soak-models`: a tenant's streams beside another's flood, or batch, of another model.

Three models of the demo's size, two that answer and one that makes vectors, on one CPU. The streams
fill the model that they are of; spells with a flood of another and without take turns, and a figure
is the median of its rounds. A share of time is what the model's steps took of what all steps took
meanwhile, by the server's metrics, which holds on a busy machine too. Beside them stand how busy
the busiest client was, and what a small request took, sent every 50 ms to the model that is not
flooded.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from scheduler.bench.report import Figure, at_least, at_most
from tests.live_server import Server, start_server
from tests.soak.decode_shares import SETTLE_S, Flood, Spell, run
from tests.soak.live_gateway import percentile

Part = tuple[dict[str, Figure], dict[str, Any]]
ROUNDS: Final = 3
SPELL_S: Final = 12.0
# Of the end of a spell, in which streams are no longer replaced.
_LAST_S: Final = 0.5
# A part of a share may be lost to what all models have in common: one event loop, one interpreter.
_KEPT: Final = 0.9
_EVERY_S: Final = 0.05
_LOOK_S: Final = 0.5
_TIMEOUT_S: Final = 60.0
# More than are done in a spell.
_BATCH_LINES, _BATCH_OUTPUT = 10_000, 200
# What batch work of another model may take; see `scheduler.engine_turns`.
_LOSS: Final = 0.2
_STEP_SUM: Final = re.compile(
    r'^sluice_engine_step_duration_seconds_sum\{model="([^"]+)"\} (\S+)', re.MULTILINE
)

OURS: Final = Flood(tenant="acme", streams=32)
BESIDE: Final[Mapping[str, Flood]] = {
    "chat": Flood(tenant="globex", streams=96, model="other"),
    "embeddings": Flood(tenant="globex", streams=4, prompt=512, inputs=16, model="vectors"),
}
_BATCH: Final = "batch"


def beside_models(directory: Path) -> Part:
    """Flood one model, and see what a tenant of another keeps, at equal weights and at 3 to 1."""
    figures: dict[str, Figure] = {}
    samples: dict[str, Any] = {}
    for name, weight in (("equal", 1.0), ("weight_3", 3.0)):
        (directory / name).mkdir()
        server = start_models(directory / name, weight=weight)
        try:
            spells = _spells(server)
        finally:
            server.stop()
        samples[name] = spells
        for other in (*BESIDE, _BATCH):
            share = 1 - _LOSS if other == _BATCH else weight / (weight + 1)
            time_share = median(spells[other]["time_share"])
            figures[f"{name}_beside_{other}_time_share"] = at_least(
                time_share, share * _KEPT, "share"
            )
            ratio = median(spells[other]["tokens_per_s"]) / median(spells["alone"]["tokens_per_s"])
            figures[f"{name}_beside_{other}_tokens_ratio"] = at_least(ratio, share * _KEPT, "ratio")
        for kind, spell in spells.items():
            p99_ms = percentile(spell["latency_s"], 0.99) * 1000
            figures[f"{name}_{kind}_small_p99_ms"] = Figure(p99_ms, "ms")
            figures[f"{name}_{kind}_failed"] = at_most(spell["failed"], 0, "requests")
    return figures, samples


def start_models(directory: Path, *, weight: float) -> Server:
    """Serve three models; `weight` is of the first, the others have 1."""
    tables = [
        f'directory = "demo"\nname = "ours"\nweight = {weight}',
        'directory = "demo"\nname = "other"',
        'directory = "demo"\nname = "vectors"\nrole = "embedding"',
    ]
    text = "kv_cache_bytes = 805306368\n" + "".join(f"\n[[models]]\n{each}\n" for each in tables)
    (directory / "sluice.toml").write_text(text)
    return start_server(directory / "data", SLUICE_ENGINE="cpu")


def _spells(server: Server) -> dict[str, dict[str, Any]]:
    """Take turns with nothing, and each flood, beside ours."""
    found: dict[str, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for name in ("alone", *BESIDE, _BATCH):
            floods = [BESIDE[name]] if name in BESIDE else []
            with _batch(server) if name == _BATCH else nullcontext():
                spell, beside = _spell(server, [replace(OURS, model="ours"), *floods])
            names = "tokens_per_s", "time_share", "latency_s", "busy"
            of_kind = found.setdefault(name, {"failed": 0} | {each: [] for each in names})
            of_kind["tokens_per_s"].append(_tokens_per_s(spell))
            of_kind["time_share"].append(beside.time_share(spell))
            of_kind["latency_s"] += beside.latency_s
            of_kind["failed"] += sum(status != 200 for status in beside.statuses)
            of_kind["busy"].append(max(spell.busy))
    return found


@contextmanager
def _batch(server: Server) -> Iterator[None]:
    """Have a batch of another model under way."""
    key = next(e["key"] for e in server.banner["keys"] if e["tenant"] != OURS.tenant)
    body = {"model": "other", "max_tokens": _BATCH_OUTPUT}
    lines = (
        {
            "custom_id": str(n),
            "method": "POST",
            "url": "/v1/completions",
            "body": body | {"prompt": f"Tell me about the number {n} and what it means to you."},
        }
        for n in range(_BATCH_LINES)
    )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=server.api, headers=headers, timeout=_TIMEOUT_S) as api:
        files = {"file": ("in.jsonl", text)}
        file_id = api.post("/files", data={"purpose": "batch"}, files=files).json()["id"]
        about = {"input_file_id": file_id, "completion_window": "24h"}
        made = api.post("/batches", json=about | {"endpoint": "/v1/completions"}).json()
        path = f"/batches/{made['id']}"
        _until(lambda: api.get(path).json()["request_counts"]["completed"])
        yield
        assert api.get(path).json()["status"] == "in_progress", "it ended before the spell did"
        api.post(f"{path}/cancel")
        _until(lambda: api.get(path).json()["status"] == "cancelled")


def _until(happened: Callable[[], object]) -> None:
    until_s = time.monotonic() + _TIMEOUT_S
    while not happened():
        assert time.monotonic() < until_s, "nothing came of a batch"
        time.sleep(_LOOK_S)


def _tokens_per_s(spell: Spell) -> float:
    end_s = SPELL_S - _LAST_S
    return spell.tokens(0, SETTLE_S, end_s) / (end_s - SETTLE_S)


@dataclass
class _Beside:
    """Hold what was asked beside floods, and what the steps of each model had taken when."""

    latency_s: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    step_s: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)

    def time_share(self, spell: Spell) -> float:
        """Return what ours had of the time of all steps, once the spell had settled."""
        begin_s, end_s = spell.began_s + SETTLE_S, spell.began_s + SPELL_S - _LAST_S
        within = [step_s for at_s, step_s in self.step_s if begin_s <= at_s <= end_s]
        first, last = within[0], within[-1]
        return (last["ours"] - first["ours"]) / (sum(last.values()) - sum(first.values()))


def _spell(server: Server, floods: Sequence[Flood]) -> tuple[Spell, _Beside]:
    """Let floods run beside small requests, and look at the metrics meanwhile."""
    over, beside = threading.Event(), _Beside()
    key = next(e["key"] for e in server.banner["keys"] if e["tenant"] == OURS.tenant)

    def ask() -> None:
        api = _connection(server.api)
        body = json.dumps({"model": "ours", "prompt": [520], "max_tokens": 1})
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        while not over.wait(_EVERY_S):
            began_s = time.monotonic()
            api.request("POST", "/v1/completions", body, headers)
            answer = api.getresponse()
            answer.read()
            beside.latency_s.append(time.monotonic() - began_s)
            beside.statuses.append(answer.status)
        api.close()

    def look() -> None:
        admin = _connection(server.banner["admin"])
        while not over.wait(_LOOK_S):
            beside.step_s.append((time.monotonic(), _step_s(server, admin)))
        admin.close()

    asking = [threading.Thread(target=do) for do in (ask, look)]
    for each in asking:
        each.start()
    try:
        spell = run(server, floods, for_s=SPELL_S)
    finally:
        over.set()
        for each in asking:
            each.join()
    return spell, beside


def _connection(url: str) -> HTTPConnection:
    parts = urlsplit(url)
    return HTTPConnection(str(parts.hostname), parts.port, timeout=_TIMEOUT_S)


def _step_s(server: Server, admin: HTTPConnection) -> dict[str, float]:
    """Say what the steps of each model have taken in all."""
    admin.request("GET", "/metrics", headers={"authorization": f"Bearer {_token(server)}"})
    text = admin.getresponse().read().decode()
    return {model: float(value) for model, value in _STEP_SUM.findall(text)}


def _token(server: Server) -> str:
    return str(server.banner["admin_token"])
