"""A client process that keeps so many requests for embeddings under way: a flood of prefills.

Reads a JSON job from stdin and writes, for each request, [sent_s, end_s, input tokens] on the clock
of the machine, and how busy its processor was.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

_REFUSED_S = 0.2


async def _one(job: dict[str, Any], draw: random.Random) -> list[float] | None:
    """Ask for the vectors of a list; its inputs are drawn, so the prefix cache holds none of it.

    Returns: None where the server was too full to take it.
    """
    num_tokens = job["prompt"]
    inputs = [[draw.randrange(512, 1000) for _ in range(num_tokens)] for _ in range(job["inputs"])]
    body = json.dumps(
        {"model": job["model"], "input": inputs, "encoding_format": "base64"}
    ).encode()
    reader, writer = await asyncio.open_connection(job["host"], job["port"])
    sent_s = time.monotonic()
    writer.write(
        b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (job["keys"][0].encode(), len(body), body)
    )
    answer = await reader.read(-1)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        assert answer.startswith((b"HTTP/1.1 503", b"HTTP/1.1 429")), answer[:500]
        await asyncio.sleep(_REFUSED_S)
        return None
    return [sent_s, time.monotonic(), num_tokens * len(inputs)]


async def _main() -> None:
    job = json.load(sys.stdin)
    await asyncio.sleep(max(0.0, job["from_s"] - time.monotonic()))
    requests: list[list[float]] = []

    async def ask_again(number: int) -> None:
        draw = random.Random(f"{job['name']} {number} {job['from_s']}")
        while time.monotonic() < job["until_s"]:
            request = await _one(job, draw)
            if request is not None:
                requests.append(request)

    asking = asyncio.gather(*map(ask_again, range(job["streams"])))
    began_s, spent_s = time.monotonic(), time.process_time()
    await asyncio.sleep(max(0.0, job["until_s"] - time.monotonic()))
    busy = (time.process_time() - spent_s) / (time.monotonic() - began_s)
    await asking
    print(json.dumps({"requests": requests, "busy": busy}))


if __name__ == "__main__":
    asyncio.run(_main())
