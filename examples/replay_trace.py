"""Replay a trace of real requests against a running Sluice and print the latencies.

    python examples/replay_trace.py --key sluice_live_… [--requests 200] [--speed 1]

Every row of the trace becomes one streamed completion: its arrival time is kept (divided by
`--speed`), its prompt and output lengths are scaled so that the longest fits the model's context.
Prompts are random token ids, and `ignore_eos` makes each answer as long as the trace says. Needs
nothing but what Sluice itself installs.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import quantiles

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

TRACE = Path(__file__).parent / "traces/azure_conv_2023_excerpt.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one request of the trace: when it came, in seconds from the first, and its lengths."""

    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what came back: the time to the first token, to the end, and how many tokens."""

    ttft_s: float
    total_s: float
    num_output_tokens: int
    complete: bool

    @property
    def tpot_s(self) -> float | None:
        """Return the time per output token after the first."""
        if self.num_output_tokens < 2:
            return None
        return (self.total_s - self.ttft_s) / (self.num_output_tokens - 1)


def read_trace(path: Path, limit: int, context: int) -> list[Row]:
    """Read the first `limit` rows, lengths scaled so that the longest request fits `context`."""
    with path.open() as file:
        raw = [
            (
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row, _ in zip(csv.DictReader(file), range(limit), strict=False)
        ]
    scale = min(1.0, context / (max(p + o for _, p, o in raw) + 2))
    start = raw[0][0]
    return [Row(at - start, max(1, int(p * scale)), max(1, int(o * scale))) for at, p, o in raw]


async def ask(client: httpx.AsyncClient, model: str, row: Row, vocab: int, seed: int) -> Answer:
    """Send one request and time its stream."""
    draw = random.Random(seed)
    body = {
        "model": model,
        "prompt": [draw.randrange(vocab // 2, vocab) for _ in range(row.num_prompt_tokens)],
        "max_tokens": row.num_output_tokens,
        "ignore_eos": True,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    ttft_s, tokens, done = float("nan"), 0, False
    async with client.stream("POST", "completions", json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode()
            print(f"request {seed}: {response.status_code} {text}", file=sys.stderr)
            return Answer(ttft_s, 0.0, 0, False)
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                if ttft_s != ttft_s:
                    ttft_s = time.perf_counter() - started
                if usage := json.loads(line[6:]).get("usage"):
                    tokens = usage["completion_tokens"]
    total_s = time.perf_counter() - started
    return Answer(ttft_s, total_s, tokens, done and tokens == row.num_output_tokens)


async def replay(
    base_url: str, key: str, model: str | None, rows: Sequence[Row], *, vocab: int, speed: float
) -> list[Answer]:
    """Send every row at its time and wait for all answers."""
    limits = httpx.Limits(max_connections=1024)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, limits=limits, timeout=600
    ) as client:
        if model is None:
            cards = (await client.get("models")).raise_for_status().json()
            model = cards["data"][0]["id"]
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("replaying", total=len(rows))
            start = time.perf_counter()

            async def one(index: int, row: Row) -> Answer:
                await asyncio.sleep(row.at_s / speed - (time.perf_counter() - start))
                answer = await ask(client, model, row, vocab, index)
                progress.advance(bar)
                return answer

            return await asyncio.gather(*(one(i, row) for i, row in enumerate(rows)))


def summary(answers: Sequence[Answer], wall_s: float) -> dict[str, object]:
    """Condense the answers to what the table shows."""
    good = [a for a in answers if a.complete]
    tokens = sum(a.num_output_tokens for a in good)
    return {
        "requests": len(answers),
        "answered": len(good),
        "wall_s": round(wall_s, 3),
        "output_tokens": tokens,
        "output_tokens_per_s": round(tokens / wall_s, 1),
        "ttft_s": percentiles([a.ttft_s for a in good]),
        "tpot_s": percentiles([a.tpot_s for a in good if a.tpot_s is not None]),
        "total_s": percentiles([a.total_s for a in good]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90 and p99, in the unit of `values`."""
    if len(values) < 2:
        return dict.fromkeys(("p50", "p90", "p99"), values[0] if values else float("nan"))
    cuts = quantiles(values, n=100, method="inclusive")
    return {name: round(cuts[at - 1], 5) for name, at in (("p50", 50), ("p90", 90), ("p99", 99))}


def print_table(result: dict[str, object]) -> None:
    """Print the summary for a person."""
    table = Table(title=f"{result['answered']} of {result['requests']} requests answered")
    for column in ("", "p50", "p90", "p99"):
        table.add_column(column, justify="right")
    for name, label in (
        ("ttft_s", "time to first token, ms"),
        ("tpot_s", "time per output token, ms"),
        ("total_s", "whole answer, ms"),
    ):
        values = result[name]
        assert isinstance(values, dict)
        table.add_row(label, *(f"{value * 1000:,.1f}" for value in values.values()))
    Console().print(table)
    print(
        f"{result['output_tokens']:,} output tokens in {result['wall_s']} s: "
        f"{result['output_tokens_per_s']} tokens/s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--key", required=True, help="a tenant's key")
    parser.add_argument("--model", help="default: the first model served")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--speed", type=float, default=1.0, help="compress the arrival times")
    parser.add_argument("--context", type=int, default=4096, help="the model's context, tokens")
    parser.add_argument("--vocab", type=int, default=1024, help="the model's vocabulary")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    rows = read_trace(args.trace, args.requests, args.context)
    started = time.perf_counter()
    answers = asyncio.run(
        replay(args.base_url, args.key, args.model, rows, vocab=args.vocab, speed=args.speed)
    )
    result = summary(answers, time.perf_counter() - started)
    if args.json:
        print(json.dumps(result))
    else:
        print_table(result)
    return 0 if result["answered"] == result["requests"] else 1


if __name__ == "__main__":
    sys.exit(main())
