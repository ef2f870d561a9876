"""What HTTP costs: tokens per second through the gateway beside the engine alone, interleaved.

Both compute the same work: all requests at once, the same prompts, lengths and seeds, with the
same settings. The engine alone is a scheduler and an engine driven in a loop, in a process of
its own, with nobody to hand tokens to.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from array import array
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.soak.live_gateway import live_gateway
from tests.soak.streams import run_client

NUM_PROMPT_TOKENS = 64


def make_bodies(model: str, num_requests: int, num_output_tokens: int) -> list[dict[str, Any]]:
    """Make the bodies of `num_requests` different completions of one length."""
    draw = random.Random(7)
    return [
        {
            "model": model,
            "prompt": [draw.randrange(512, 1000) for _ in range(NUM_PROMPT_TOKENS)],
            "max_tokens": num_output_tokens,
            "ignore_eos": True,
            "seed": index,
            "stream": True,
        }
        for index in range(num_requests)
    ]


async def over_http(
    data_dir: Path, *, num_requests: int, num_output_tokens: int, rounds: int
) -> list[dict[str, float]]:
    """Alternate rounds over HTTP and rounds of the engine alone; return tokens/s of both."""
    samples = []
    async with live_gateway(data_dir) as gateway:
        url = urlsplit(gateway.api)
        bodies = make_bodies(gateway.model.name, num_requests, num_output_tokens)
        job = {"host": url.hostname, "port": url.port, "key": gateway.key, "bodies": bodies}
        for number in range(rounds + 1):
            http = await run_client("tests.soak.raw_client", job)
            assert http["complete"] == num_requests, http
            alone = await run_client("tests.soak.throughput", {"bodies": bodies})
            if number:  # the first round warms both
                tokens = num_requests * num_output_tokens
                samples.append(
                    {
                        "http_tokens_per_s": tokens / http["wall_s"],
                        "alone_tokens_per_s": tokens / alone["wall_s"],
                    }
                )
    return samples


def engine_alone(bodies: list[dict[str, Any]]) -> float:
    """Compute all bodies with a scheduler and an engine and nothing else; return seconds."""
    from engine.config import EngineConfig
    from engine.contract import SamplingParams
    from engine.cpu.runner import TorchEngine
    from engine.demo import MODEL_DIR
    from scheduler.config import first_come
    from scheduler.core import Scheduler
    from scheduler.request import Band, Request

    # As `sluice serve` runs the demo model.
    engine = TorchEngine(EngineConfig(model_dir=MODEL_DIR, dtype="float32"))

    def run() -> float:
        scheduler = Scheduler(engine.info, first_come())
        started = time.perf_counter()
        for index, body in enumerate(bodies):
            params = SamplingParams(
                max_tokens=body["max_tokens"], seed=body["seed"], ignore_eos=True
            )
            request = Request(
                request_id=str(index),
                tenant_id="t",
                key_id="k",
                weight=1.0,
                band=Band.DEFAULT,
                prompt_token_ids=array("i", body["prompt"]),
                params=params,
                cache_salt=b"",
                arrival_s=started,
            )
            scheduler.offer(request, started)
        while (plan := scheduler.plan(time.perf_counter())) is not None:
            result = engine.collect(engine.launch(plan))
            scheduler.report(result, time.perf_counter())
        return time.perf_counter() - started

    run()
    engine.reset()
    return run()


async def _main() -> None:
    job = json.load(sys.stdin)
    print(json.dumps({"wall_s": await asyncio.to_thread(engine_alone, job["bodies"])}))


if __name__ == "__main__":
    asyncio.run(_main())
