"""The part of `soak-batch` that measures what batches take from online work, and what they add.

The built-in model behind a whole server. Its capacity is found by the rows of a trace, one after
the other on many streams; then the same trace comes at its own times, at half that rate, in spells
without a backlog and with an endless one, which take turns. A request attains its objective if its
first token came in `TTFT_S` and each further one took `TPOT_S` in the mean, as its tenant is
promised. Tokens are those of prompts and answers.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from examples.replay_trace import TRACE, Row, read_trace
from scheduler.bench.report import Figure, at_least, at_most
from tests.live_server import SLUICE, Server, sluice_env, start_server

Part = tuple[dict[str, Figure], dict[str, Any]]

ROUNDS: Final = 4
SPELL_S: Final = 20.0
TTFT_S: Final = 0.5
TPOT_S: Final = 0.05
_CONTEXT: Final = 1024
_NUM_ROWS: Final = 2_000
_CAPACITY_ROWS: Final = 600
_STREAMS: Final = 64
_LOAD: Final = 0.5
_ONLINE, _BATCH = "acme", "globex"
_BATCH_LINES: Final = 6_000
_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True)
class Spell:
    """Hold what a spell was: requests as [sent_s, first_s, end_s, tokens], and what was refused."""

    began_s: float
    ended_s: float
    requests: Sequence[Sequence[float]]
    num_refused: int
    num_prompt_tokens: int
    batch_tokens: int
    busy: float

    @property
    def attainment(self) -> float:
        """Say which part of what was asked was answered in time."""
        return sum(map(_is_in_time, self.requests)) / (len(self.requests) + self.num_refused)

    @property
    def tokens_per_s(self) -> float:
        """Say what was computed in all, while requests came."""
        own = self.num_prompt_tokens + sum(request[3] for request in self.requests)
        return (own + self.batch_tokens) / (self.ended_s - self.began_s)


def batch_harvest(
    directory: Path, *, rounds: int = ROUNDS, spell_s: float = SPELL_S, num_rows: int = _NUM_ROWS
) -> Part:
    """Replay a trace at half load without a backlog and with one, in turn."""
    server = start_server(directory / "data")
    try:
        _promise(server, _ONLINE)
        rows = read_trace(TRACE, num_rows, _CONTEXT)
        capacity_rps = _capacity_rps(server, rows)
        replay = _at_rate(rows, _LOAD * capacity_rps, spell_s)
        spells: dict[str, list[Spell]] = {"alone": [], "beside": []}
        for number in range(rounds):
            spells["alone"].append(_spell(server, replay, f"alone {number}"))
            with _backlog(server, rows, number):
                spells["beside"].append(_spell(server, replay, f"beside {number}"))
    finally:
        server.stop()
    return _figures(spells), {
        "capacity_rps": capacity_rps,
        "requests_a_spell": len(replay),
        "spells": {name: [_shown(spell) for spell in each] for name, each in spells.items()},
    }


def _figures(spells: dict[str, list[Spell]]) -> dict[str, Figure]:
    alone, beside = spells["alone"], spells["beside"]
    lost = 100 * (mean(s.attainment for s in alone) - mean(s.attainment for s in beside))
    ratio = median(b.tokens_per_s / a.tokens_per_s for a, b in zip(alone, beside, strict=True))
    figures = {
        "harvest_attainment_lost_points": at_most(lost, 1.0, "points"),
        "harvest_tokens_ratio": at_least(ratio, 1.5, "ratio"),
    }
    for name, each in spells.items():
        requests = [request for spell in each for request in spell.requests]
        ttft_ms = sorted((first_s - sent_s) * 1000 for sent_s, first_s, *_ in requests)
        figures[f"harvest_attainment_{name}"] = Figure(mean(s.attainment for s in each), "share")
        figures[f"harvest_ttft_p50_{name}_ms"] = Figure(median(ttft_ms), "ms")
        figures[f"harvest_ttft_p99_{name}_ms"] = Figure(ttft_ms[int(0.99 * len(ttft_ms))], "ms")
        figures[f"harvest_tpot_p50_{name}_ms"] = Figure(
            median(1000 * _tpot_s(request) for request in requests), "ms"
        )
    return figures


def _shown(spell: Spell) -> dict[str, float]:
    return {
        "attainment": spell.attainment,
        "tokens_per_s": spell.tokens_per_s,
        "batch_tokens": spell.batch_tokens,
        "refused": spell.num_refused,
        "client_busy": spell.busy,
    }


def _is_in_time(request: Sequence[float]) -> bool:
    return request[1] - request[0] <= TTFT_S and _tpot_s(request) <= TPOT_S


def _tpot_s(request: Sequence[float]) -> float:
    _, first_s, end_s, num_tokens = request
    return (end_s - first_s) / max(1.0, num_tokens - 1)


def _capacity_rps(server: Server, rows: Sequence[Row]) -> float:
    """Find how many rows a second are served where there are always some to begin."""
    _replay(server, rows[:_STREAMS], "warm", streams=_STREAMS)
    answer = _replay(server, rows[:_CAPACITY_ROWS], "full", streams=_STREAMS)
    requests = sorted(answer["requests"])
    return len(requests) / (max(r[2] for r in requests) - requests[0][0])


def _at_rate(rows: Sequence[Row], rate_rps: float, for_s: float) -> list[Row]:
    """Return as many rows as come in a spell at this rate, with gaps as the trace has them."""
    kept = rows[: max(2, int(rate_rps * for_s))]
    assert len(kept) == int(rate_rps * for_s), "the trace is long enough for the spell"
    scale = for_s / (kept[-1].at_s - kept[0].at_s)
    return [
        Row((row.at_s - kept[0].at_s) * scale, row.num_prompt_tokens, row.num_output_tokens)
        for row in kept
    ]


def _spell(server: Server, rows: Sequence[Row], name: str) -> Spell:
    batch_tokens, began_s = _batch_tokens(server), time.monotonic()
    answer = _replay(server, rows, name, streams=None)
    ended_s = time.monotonic()
    return Spell(
        began_s,
        ended_s,
        answer["requests"],
        answer["refused"],
        sum(row.num_prompt_tokens for row in rows),
        _batch_tokens(server) - batch_tokens,
        answer["busy"],
    )


def _replay(server: Server, rows: Sequence[Row], name: str, *, streams: int | None) -> Any:
    url = urlsplit(server.api)
    job = {
        "host": url.hostname,
        "port": url.port,
        "model": server.banner["model"],
        "key": _key(server, _ONLINE),
        "name": name,
        "rows": [(row.at_s, row.num_prompt_tokens, row.num_output_tokens) for row in rows],
        "streams": streams,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.replay_client"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return json.loads(done.stdout)


@contextmanager
def _backlog(server: Server, rows: Sequence[Row], number: int) -> Iterator[None]:
    """Have more batch work wait than can be done, while the block runs."""
    with _client(server, _BATCH) as client:
        lines = "\n".join(map(json.dumps, _lines(server, rows, number)))
        file = client.post(
            "/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", lines)}
        ).raise_for_status()
        asked = {
            "input_file_id": file.json()["id"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        batch = client.post("/batches", json=asked).raise_for_status().json()["id"]
        _wait(client, batch, lambda found: found["request_counts"]["completed"] >= 16)
        yield
        found = client.post(f"/batches/{batch}/cancel").raise_for_status().json()
        counts = found["request_counts"]
        assert counts["completed"] + counts["failed"] < counts["total"], "the backlog was endless"
        assert not counts["failed"]
        _wait(client, batch, lambda found: found["status"] == "cancelled")


def _lines(server: Server, rows: Sequence[Row], number: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(number)
    for line, row in enumerate(itertools.islice(itertools.cycle(rows), _BATCH_LINES)):
        prompt = [draw.randrange(512, 1000) for _ in range(row.num_prompt_tokens)]
        body = {"model": server.banner["model"], "prompt": prompt, "ignore_eos": True}
        body["max_tokens"] = row.num_output_tokens
        yield {"custom_id": str(line), "method": "POST", "url": "/v1/completions", "body": body}


def _wait(client: httpx.Client, batch: str, is_so: Any) -> None:
    until_s = time.monotonic() + _TIMEOUT_S
    while not is_so(client.get(f"/batches/{batch}").raise_for_status().json()):
        assert time.monotonic() < until_s, "the batch goes on"
        time.sleep(0.1)


def _batch_tokens(server: Server) -> int:
    with _client(server, _BATCH) as client:
        usages = [
            batch["usage"]
            for batch in client.get("/batches").raise_for_status().json()["data"]
            if batch["usage"]
        ]
    return sum(usage["total_tokens"] for usage in usages)


def _client(server: Server, tenant: str) -> httpx.Client:
    key = _key(server, tenant)
    return httpx.Client(base_url=server.api, headers={"authorization": f"Bearer {key}"}, timeout=60)


def _key(server: Server, tenant: str) -> str:
    return next(str(entry["key"]) for entry in server.banner["keys"] if entry["tenant"] == tenant)


def _promise(server: Server, tenant: str) -> None:
    """Have the tenant promised what its requests are held to."""
    flags = ["--ttft-ms", str(TTFT_S * 1000), "--tpot-ms", str(TPOT_S * 1000)]
    env = sluice_env(SLUICE_DATA_DIR=str(server.data_dir))
    subprocess.run([SLUICE, "tenants", "update", tenant, *flags], env=env, check=True)
