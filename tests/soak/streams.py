"""Promises about streams: complete and correct, a responsive loop, memory flat, nothing leaked."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.soak.live_gateway import LiveGateway, LoopLag, live_gateway, percentile, rss_mib

QUESTIONS = (
    "What is Sluice?",
    "How do I start Sluice?",
    "How do I run the tests?",
    "Where do keys live?",
    "Which Python do I need?",
    "What licence does Sluice have?",
    "How do I create a key?",
    "Who are you?",
)
MAX_TOKENS = 64
POLL_S = 0.002


@dataclass
class StreamsResult:
    """Hold what rounds of concurrent SDK streams showed."""

    wrong: list[str] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


async def concurrent_streams(data_dir: Path, *, num_streams: int, rounds: int) -> StreamsResult:
    """Run rounds of SDK streams; compare each text with the answer to the question asked alone."""
    result = StreamsResult()
    async with live_gateway(data_dir) as gateway:
        expected = {question: await _ask(gateway, question) for question in QUESTIONS}
        questions = [QUESTIONS[i % len(QUESTIONS)] for i in range(num_streams)]
        job = _job(gateway, questions=questions, max_tokens=MAX_TOKENS)
        for _ in range(rounds):
            started = time.perf_counter()
            async with LoopLag() as lag:
                answers = await run_client("tests.soak.sdk_client", job)
            result.wall_s.append(time.perf_counter() - started)
            result.lag_s += lag.samples_s
            for question, answer in zip(questions, answers, strict=True):
                result.wrong += answer["faults"]
                if answer["text"] != expected[question]:
                    result.wrong.append(f"{question}: {answer['text']!r}")
            gc.collect()
            result.rss_mib.append(rss_mib())
        await baseline(gateway)
    return result


@dataclass
class DisconnectsResult:
    """Hold, for each disconnect, how long slots and blocks took to come back, in seconds."""

    streaming_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)


async def disconnects(data_dir: Path, *, num_each: int, together: int) -> DisconnectsResult:
    """Drop connections in the middle of answers, streaming and not, `together` at a time."""
    result = DisconnectsResult()
    async with live_gateway(data_dir, prefix_caching=False) as gateway:
        for stream, times in ((True, result.streaming_s), (False, result.plain_s)):
            for _ in range(num_each // together):
                await _drop(gateway, stream=stream, together=together, times=times)
    return result


async def _drop(gateway: LiveGateway, *, stream: bool, together: int, times: list[float]) -> None:
    writers = await asyncio.gather(*(_send(gateway, stream=stream) for _ in range(together)))
    while gateway.model.service.snapshot().running < together:
        await asyncio.sleep(POLL_S)
    started = time.perf_counter()
    for writer in writers:
        writer.transport.abort()
    await baseline(gateway)
    times += [time.perf_counter() - started] * together


async def _send(gateway: LiveGateway, *, stream: bool) -> asyncio.StreamWriter:
    """Send a request whose answer would fill the context, and do not read it."""
    url = urlsplit(gateway.api)
    body = json.dumps(
        {
            "model": gateway.model.name,
            "prompt": "one two three",
            "max_tokens": gateway.model.info.max_model_len - 64,
            "ignore_eos": True,
            "stream": stream,
        }
    ).encode()
    _, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
        % (gateway.key.encode(), len(body), body)
    )
    return writer


async def baseline(gateway: LiveGateway, *, timeout_s: float = 10) -> None:
    """Wait until nothing runs, nothing is queued and every KV block is free."""
    async with asyncio.timeout(timeout_s):
        while True:
            now = gateway.model.service.snapshot()
            if not now.running and not now.queued and now.free_blocks == now.total_blocks:
                return
            await asyncio.sleep(POLL_S)


async def run_client(module: str, job: dict[str, Any]) -> Any:
    """Run a client process on a JSON job and return the JSON it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(json.dumps(job).encode())
    assert process.returncode == 0, f"{module} failed"
    return json.loads(out)


def loop_lag_p99_ms(result: StreamsResult) -> float:
    """Return the 99th percentile of the loop's lag."""
    return percentile(result.lag_s, 0.99) * 1000


def _job(gateway: LiveGateway, **extra: Any) -> dict[str, Any]:
    return {"api": gateway.api, "key": gateway.key, "model": gateway.model.name} | extra


async def _ask(gateway: LiveGateway, question: str) -> str:
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(
            f"{gateway.api}/chat/completions",
            headers={"authorization": f"Bearer {gateway.key}"},
            json={
                "model": gateway.model.name,
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
                "max_tokens": MAX_TOKENS,
            },
        )
    return str(response.raise_for_status().json()["choices"][0]["message"]["content"])
