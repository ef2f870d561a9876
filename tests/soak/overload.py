"""A server that is asked for five times what it can do: what it still does, and how it refuses.

A simulated engine at the pace of a GPU, so that the gateway and its scheduler are what is tested.
First closed loops find the capacity, then an open stream a little below it gives the peak of what
is served in time, then comes five times the capacity: nine tenths from a tenant of the default
tier, the rest, which the server could serve alone, of the priority tier. Both tenants were promised
a first token in `TTFT_S`. A client process of its own sends, and notes when each answer began.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.live_server import SLUICE, Server, sluice_env
from tests.soak.live_gateway import percentile

TTFT_S = 3.0
PRIORITY_SHARE = 0.1
FACTOR = 5.0
_NUM_PROMPT_TOKENS, _NUM_OUTPUT_TOKENS = 512, 48
_STREAMS = 64
_NEAR_CAPACITY = 0.9
# Of each phase, before what is served counts: queues and rows fill first.
SETTLE_S = 8.0
ENGINE = ("--engine", "simulated", "--engine-profile", "a100-llama-3-8b")
SETTINGS = {"SLUICE_MAX_NUM_SEQS": "64"}


@dataclass(frozen=True)
class Answer:
    """Say what became of a request; times from the beginning of its phase, in seconds."""

    tier: str
    sent_s: float
    began_s: float
    ended_s: float
    status: int
    retry_after: bool

    @property
    def in_time(self) -> bool:
        return self.status == 200 and self.began_s - self.sent_s <= TTFT_S


@dataclass(frozen=True)
class Overload:
    """Hold what the phases showed; rates in requests a second, memory in MiB over time."""

    capacity_rps: float
    peak_goodput_rps: float
    goodput_rps: float
    sent_rps: float
    num_refused: int
    num_refused_without_retry: int
    num_failed: int
    refusal_p99_s: float
    priority_in_time: float
    rss_mib: list[float]

    @property
    def rss_spread(self) -> float:
        """Return the most memory over the least, once the queue had filled."""
        return max(self.rss_mib) / min(self.rss_mib)


def press(server: Server, *, near_s: float, over_s: float, settle_s: float = SETTLE_S) -> Overload:
    """Find the capacity of a fresh server, then send what it can do and five times that.

    What is served in the first `settle_s` of a phase does not count.
    """
    _run(server, "tenants", "update", "acme", "--ttft-ms", str(TTFT_S * 1000))
    _run(server, "tenants", "update", "globex", "--ttft-ms", str(TTFT_S * 1000))
    made = _run(server, "keys", "create", "--tenant", "globex", "--max-tier", "priority", "--json")
    keys = {"default": server.banner["keys"][0]["key"], "priority": json.loads(made)["key"]}
    capacity_rps, _ = _phase(server, keys, streams=_STREAMS, for_s=min(20.0, near_s))
    near, _ = _open_phase(server, keys, _NEAR_CAPACITY * capacity_rps, near_s)
    over, rss_mib = _open_phase(server, keys, FACTOR * capacity_rps, over_s)
    refused = [a for a in over if a.status in (429, 503)]
    priority = [a for a in over if a.tier == "priority"]
    return Overload(
        capacity_rps=capacity_rps,
        peak_goodput_rps=_goodput_rps(near, near_s, settle_s),
        goodput_rps=_goodput_rps(over, over_s, settle_s),
        sent_rps=len(over) / over_s,
        num_refused=len(refused),
        num_refused_without_retry=sum(not a.retry_after for a in refused),
        num_failed=sum(a.status not in (200, 429, 503) for a in (*near, *over)),
        refusal_p99_s=percentile([a.began_s - a.sent_s for a in refused], 0.99),
        priority_in_time=sum(a.in_time for a in priority) / len(priority),
        rss_mib=rss_mib,
    )


def _goodput_rps(answers: list[Answer], for_s: float, settle_s: float) -> float:
    """Count what was served in time, by when it ended, once the phase had settled."""
    served = [a for a in answers if a.in_time and settle_s <= a.ended_s < for_s]
    return len(served) / (for_s - settle_s)


def _run(server: Server, *command: str) -> str:
    env = sluice_env(SLUICE_DATA_DIR=str(server.data_dir))
    done = subprocess.run(
        [SLUICE, *command], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def _open_phase(
    server: Server, keys: dict[str, str], rate: float, for_s: float
) -> tuple[list[Answer], list[float]]:
    result, rss_mib = _client(server, {"keys": keys, "rate": rate, "for_s": for_s})
    return [Answer(*entry) for entry in result], rss_mib


def _phase(
    server: Server, keys: dict[str, str], *, streams: int, for_s: float
) -> tuple[float, list[float]]:
    """Keep streams open one after another; returns how many ended a second."""
    result, rss_mib = _client(server, {"keys": keys, "streams": streams, "for_s": for_s})
    ended = [entry for entry in result if entry[4] == 200 and for_s / 4 <= entry[3] < for_s]
    return len(ended) / (0.75 * for_s), rss_mib


def _client(server: Server, job: dict[str, Any]) -> tuple[list[Any], list[float]]:
    """Run the client process; meanwhile note the server's memory every second."""
    url = urlsplit(server.api)
    job |= {"host": url.hostname, "port": url.port, "model": server.banner["model"]}
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.overload"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdin is not None
    client.stdin.write(json.dumps(job))
    client.stdin.close()
    client.stdin = None
    rss_mib: list[float] = []
    began_s = time.monotonic()
    while time.monotonic() - began_s < job["for_s"]:
        time.sleep(1)
        if time.monotonic() - began_s > SETTLE_S:
            rss_mib.append(_rss_mib(server.process.pid))
    out, _ = client.communicate()
    assert client.returncode == 0
    return json.loads(out), rss_mib


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


async def _one(job: dict[str, Any], tier: str, draw: random.Random, phase_s: float) -> list[Any]:
    """Stream one completion and note its times."""
    body = json.dumps(
        {
            "model": job["model"],
            "prompt": [draw.randrange(1, 1000) for _ in range(_NUM_PROMPT_TOKENS)],
            "max_tokens": _NUM_OUTPUT_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    sent_s = time.perf_counter() - phase_s
    try:
        reader, writer = await asyncio.open_connection(job["host"], job["port"])
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (job["keys"][tier].encode(), len(body), body)
        )
        head = await reader.read(1 << 16)
        began_s = time.perf_counter() - phase_s
        tail = head
        while data := await reader.read(1 << 16):
            tail = (tail + data)[-64:]
        writer.close()
    except OSError:
        now_s = time.perf_counter() - phase_s
        return [tier, sent_s, now_s, now_s, 0, False]
    status = int(head.split(b" ", 2)[1]) if head else 0
    if status == 200 and b"data: [DONE]\n\n" not in tail:
        status = 0
    ended_s = time.perf_counter() - phase_s
    return [tier, sent_s, began_s, ended_s, status, b"retry-after:" in head.lower()]


async def _main() -> None:
    job = json.load(sys.stdin)
    phase_s = time.perf_counter()
    draw = random.Random(7)
    if "streams" in job:
        answers: list[list[Any]] = []

        async def stream(number: int) -> None:
            own = random.Random(number)
            while time.perf_counter() - phase_s < job["for_s"]:
                answers.append(await _one(job, "default", own, phase_s))

        await asyncio.gather(*(stream(number) for number in range(job["streams"])))
    else:
        tasks = []
        due_s = 0.0
        while (due_s := due_s + draw.expovariate(job["rate"])) < job["for_s"]:
            await asyncio.sleep(max(0.0, due_s - (time.perf_counter() - phase_s)))
            tier = "priority" if draw.random() < PRIORITY_SHARE else "default"
            tasks.append(asyncio.create_task(_one(job, tier, random.Random(len(tasks)), phase_s)))
        answers = list(await asyncio.gather(*tasks))
    print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(_main())
