"""Two tenants flood one server: what each is served, in weighted tokens, beside their weights.

Every tenant has many more streams open at once than the engine has rows, so both always wait for
more. The tenants' requests differ in shape, so a share of requests, or of rows, is not a share of
tokens. A client process of its own notes, for each request, when it was sent, when its first bytes
came and when its last; a request's prompt counts at its first token, and its output evenly from
there to its end. A flood lasts until enough was served to tell shares apart, however slow the
machine is.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from scheduler.config import Prices
from tests.live_server import Server, run_sluice, sluice_env

WEIGHTS = {"acme": 1.0, "globex": 3.0}
# (prompt tokens, output tokens); prompts are drawn, so the prefix cache holds none of them.
# The same for both: a share is of machine time, whatever tokens that makes.
SHAPES = {"acme": (16, 24), "globex": (16, 24)}
# Few rows, so that a handful of streams is a backlog.
ROWS, STREAMS_PER_TENANT = 8, 32
ENGINE = {"SLUICE_MAX_NUM_SEQS": str(ROWS)}
# Requests that end before what is served counts.
WARMUP_REQUESTS = 4 * ROWS


@dataclass(frozen=True)
class Shares:
    """Hold what a flood showed of the time in which both tenants were backlogged.

    `served` is in weighted tokens, `least_waiting` the fewest requests of a tenant that waited for
    their first token at any time.
    """

    served: dict[str, float]
    least_waiting: dict[str, int]
    num_requests: dict[str, int]
    seconds: float

    @property
    def ratio(self) -> float:
        """Return what globex was served for each weighted token of acme's."""
        return self.served["globex"] / self.served["acme"]

    @property
    def error(self) -> float:
        """Return how far the ratio is from that of the weights, relatively."""
        return abs(self.ratio / (WEIGHTS["globex"] / WEIGHTS["acme"]) - 1)


def flood(server: Server, *, min_requests: int, min_s: float = 0.0) -> Shares:
    """Set the weights, flood a fresh server from both tenants, and measure their shares.

    At least `min_requests` end while it is measured, and at least `min_s` seconds pass.
    """
    for tenant, weight in WEIGHTS.items():
        env = sluice_env(SLUICE_DATA_DIR=str(server.data_dir))
        run_sluice("tenants", "update", tenant, "--weight", str(weight), env=env, check=True)
    url = urlsplit(server.api)
    keys = {entry["tenant"]: entry["key"] for entry in server.banner["keys"]}
    job = {
        "host": url.hostname,
        "port": url.port,
        "model": server.banner["model"],
        "keys": keys,
        "min_requests": min_requests,
        "min_s": min_s,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.fairness"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return shares(**json.loads(done.stdout))


def shares(requests: Mapping[str, list[list[float]]], *, start_s: float, end_s: float) -> Shares:
    """Add up what was served in an interval; a request is [sent_s, first_s, end_s]."""
    prices = Prices()
    served = {}
    for tenant, times in requests.items():
        num_prompt_tokens, num_output_tokens = SHAPES[tenant]
        served[tenant] = 0.0
        for _, first_s, last_s in times:
            inside_s = min(last_s, end_s) - max(first_s, start_s)
            if start_s <= first_s < end_s:
                served[tenant] += prices.input * num_prompt_tokens
            if inside_s > 0:
                part = inside_s / (last_s - first_s)
                served[tenant] += prices.output * num_output_tokens * part
    return Shares(
        served,
        {tenant: _least_waiting(times, start_s, end_s) for tenant, times in requests.items()},
        {tenant: len(times) for tenant, times in requests.items()},
        end_s - start_s,
    )


def _least_waiting(times: list[list[float]], start_s: float, end_s: float) -> int:
    events = sorted(
        [(sent_s, 1) for sent_s, _, _ in times] + [(first, -1) for _, first, _ in times]
    )
    return min(_levels(events, start_s, end_s))


def _levels(events: list[tuple[float, int]], start_s: float, end_s: float) -> Iterator[int]:
    level = 0
    for at_s, step in events:
        level += step
        # Of an answer and the next request of the same stream, the answer comes first.
        if start_s <= at_s < end_s and step > 0:
            yield level


async def _one(job: dict[str, Any], tenant: str, draw: random.Random, began: float) -> list[float]:
    """Stream one completion and return its times."""
    num_prompt_tokens, num_output_tokens = SHAPES[tenant]
    body = json.dumps(
        {
            "model": job["model"],
            "prompt": [draw.randrange(512, 1000) for _ in range(num_prompt_tokens)],
            "max_tokens": num_output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    reader, writer = await asyncio.open_connection(job["host"], job["port"])
    sent_s = time.perf_counter() - began
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (job["keys"][tenant].encode(), len(body), body)
    )
    head = await reader.read(1 << 16)
    first_s = time.perf_counter() - began
    assert head.startswith(b"HTTP/1.1 200"), head
    tail = head[-64:]
    while data := await reader.read(1 << 16):
        tail = (tail + data)[-64:]
    assert b"data: [DONE]\n\n" in tail, tail
    writer.close()
    return [sent_s, first_s, time.perf_counter() - began]


async def _main() -> None:
    job = json.load(sys.stdin)
    requests: dict[str, list[list[float]]] = {tenant: [] for tenant in SHAPES}
    began = time.perf_counter()
    start_s = end_s = 0.0

    def is_over() -> bool:
        nonlocal start_s, end_s
        now_s = time.perf_counter() - began
        num_ended = sum(map(len, requests.values())) - WARMUP_REQUESTS
        if num_ended >= 0 and not start_s:
            start_s = now_s
        is_enough = num_ended >= job["min_requests"] and now_s - start_s >= job["min_s"]
        if start_s and is_enough and not end_s:
            end_s = now_s
        return bool(end_s)

    async def stream(tenant: str, number: int) -> None:
        draw = random.Random(f"{tenant} {number}")
        while not is_over():
            requests[tenant].append(await _one(job, tenant, draw, began))

    streams = [stream(tenant, n) for n in range(STREAMS_PER_TENANT) for tenant in SHAPES]
    await asyncio.gather(*streams)
    print(json.dumps({"requests": requests, "start_s": start_s, "end_s": end_s}))


if __name__ == "__main__":
    asyncio.run(_main())
