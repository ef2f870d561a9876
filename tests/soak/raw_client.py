"""A client process that costs as little as one can: bare sockets, no parsing but the end.

Reads a JSON job from stdin ({"host", "port", "key", "bodies"}), sends all bodies at once to
/v1/completions and writes {"wall_s", "complete", "bytes"} to stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any


async def one(job: dict[str, Any], body: dict[str, Any]) -> tuple[bool, int]:
    """Stream one completion; tell whether it ended properly and how many bytes came."""
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(job["host"], job["port"])
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-type: application/json\r\nauthorization: Bearer %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (job["key"].encode(), len(payload), payload)
    )
    tail, size = b"", 0
    while data := await reader.read(1 << 16):
        size += len(data)
        tail = (tail + data)[-64:]
    writer.close()
    return b"data: [DONE]\n\n" in tail, size


async def main() -> None:
    job = json.load(sys.stdin)
    started = time.perf_counter()
    results = await asyncio.gather(*(one(job, body) for body in job["bodies"]))
    print(
        json.dumps(
            {
                "wall_s": time.perf_counter() - started,
                "complete": sum(done for done, _ in results),
                "bytes": sum(size for _, size in results),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
