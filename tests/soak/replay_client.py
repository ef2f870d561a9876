"""A client process that sends the requests of a trace, at their times or one after the other.

Reads a JSON job from stdin: `rows` of [at_s, prompt tokens, output tokens], and `streams`, None for
the rows' own times. Writes for each request that was answered whole [sent_s, first_s, end_s,
tokens] on the clock of the machine, how many were not, and how busy its processor was.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

_Row = tuple[float, int, int]


async def _one(job: dict[str, Any], number: int, row: _Row) -> list[float] | None:
    """Stream one completion of a prompt that nobody has asked before; None where it is refused."""
    _, num_prompt_tokens, num_output_tokens = row
    draw = random.Random(f"{job['name']} {number}")
    body = json.dumps(
        {
            "model": job["model"],
            "prompt": [draw.randrange(512, 1000) for _ in range(num_prompt_tokens)],
            "max_tokens": num_output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    sent_s = time.monotonic()
    reader, writer = await asyncio.open_connection(job["host"], job["port"])
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (job["key"].encode(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            return None
        tail = await reader.read(1 << 16)
        first_s = time.monotonic()
        while data := await reader.read(1 << 16):
            tail = (tail + data)[-64:]
        if b"data: [DONE]\n\n" not in tail:
            return None
        return [sent_s, first_s, time.monotonic(), num_output_tokens]
    finally:
        writer.close()


async def _main() -> None:
    job = json.load(sys.stdin)
    rows: list[_Row] = job["rows"]
    began_s, spent_s = time.monotonic(), time.process_time()
    if job["streams"] is None:
        requests = await _at_their_times(job, rows)
    else:
        requests = await _one_after_the_other(job, rows)
    busy = (time.process_time() - spent_s) / (time.monotonic() - began_s)
    answered = [request for request in requests if request is not None]
    print(
        json.dumps({"requests": answered, "refused": len(requests) - len(answered), "busy": busy})
    )


async def _at_their_times(job: dict[str, Any], rows: list[_Row]) -> list[list[float] | None]:
    began_s = time.monotonic()
    tasks = []
    for number, row in enumerate(rows):
        await asyncio.sleep(max(0.0, began_s + row[0] - time.monotonic()))
        tasks.append(asyncio.create_task(_one(job, number, row)))
    return list(await asyncio.gather(*tasks))


async def _one_after_the_other(job: dict[str, Any], rows: list[_Row]) -> list[list[float] | None]:
    left = iter(list(enumerate(rows)))
    requests: list[list[float] | None] = []

    async def stream() -> None:
        for number, row in left:
            requests.append(await _one(job, number, row))

    await asyncio.gather(*(stream() for _ in range(job["streams"])))
    return requests


if __name__ == "__main__":
    asyncio.run(_main())
