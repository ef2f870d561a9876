"""A client process that keeps so many streams of one tenant open: a flood of decoding rows.

Reads a JSON job from stdin and writes, for each request, [first_s, end_s, output tokens] on the
clock of the machine, and how busy its processor was; the server is to be what is full.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

_REFUSED_S = 0.5


async def _one(job: dict[str, Any], key: str, draw: random.Random) -> list[float] | None:
    """Stream one completion; its prompt is drawn, so the prefix cache holds none of it.

    Returns: None where the server was too full to take it.
    """
    num_output_tokens = draw.randint(*job["output"])
    body = json.dumps(
        {
            "model": job["model"],
            "prompt": [draw.randrange(512, 1000) for _ in range(job["prompt"])],
            "max_tokens": num_output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    reader, writer = await asyncio.open_connection(job["host"], job["port"])
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
    )
    head = await reader.read(1 << 16)
    if head.startswith(b"HTTP/1.1 503"):
        writer.close()
        await asyncio.sleep(_REFUSED_S)
        return None
    assert head.startswith(b"HTTP/1.1 200"), head
    # Headers may come long before a first token does.
    while b"data: {" not in head:
        more = await reader.read(1 << 16)
        assert more, head
        head = head[-64:] + more
    first_s = time.monotonic()
    tail = head[-64:]
    while data := await reader.read(1 << 16):
        tail = (tail + data)[-64:]
    assert b"data: [DONE]\n\n" in tail, tail
    writer.close()
    return [first_s, time.monotonic(), num_output_tokens]


async def _main() -> None:
    job = json.load(sys.stdin)
    await asyncio.sleep(max(0.0, job["from_s"] - time.monotonic()))
    requests: list[list[float]] = []

    async def stream(number: int) -> None:
        draw = random.Random(f"{job['name']} {number} {job['from_s']}")
        key = job["keys"][number % len(job["keys"])]
        # They are not to end all at once.
        of_first = {**job, "output": (2, job["output"][1])}
        while time.monotonic() < job["until_s"]:
            request = await _one(of_first or job, key, draw)
            if request is not None:
                requests.append(request)
                of_first = {}

    streams = asyncio.gather(*map(stream, range(job["streams"])))
    began_s, spent_s = time.monotonic(), time.process_time()
    await asyncio.sleep(max(0.0, job["until_s"] - time.monotonic()))
    busy = (time.process_time() - spent_s) / (time.monotonic() - began_s)
    await streams
    print(json.dumps({"requests": requests, "busy": busy}))


if __name__ == "__main__":
    asyncio.run(_main())
