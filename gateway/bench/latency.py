"""How long requests take at a fixed rate, however the server keeps up."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from gateway.bench.load import exchange
from gateway.bench.subjects import Subject


async def latencies_s(
    subject: Subject, request: bytes, *, rate_rps: float, for_s: float
) -> list[float]:
    """Send at a fixed rate; return how long each answer took from when it was due.

    Connections are kept and shared: one that is free takes the next request, and a new one is
    opened where none is. Raises: `BenchError`: an answer was no 200.
    """
    free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()
    everyone: list[asyncio.StreamWriter] = []
    taken_s: list[float] = []

    async def one(due_s: float) -> None:
        if free:
            reader, writer = free.popleft()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", subject.port)
            everyone.append(writer)
        await exchange(reader, writer, request)
        taken_s.append(time.perf_counter() - due_s)
        free.append((reader, writer))

    tasks: set[asyncio.Task[None]] = set()
    began_s = time.perf_counter()
    for number in range(int(rate_rps * for_s)):
        due_s = began_s + number / rate_rps
        await asyncio.sleep(max(due_s - time.perf_counter(), 0))
        tasks.add(asyncio.create_task(one(due_s)))
    await asyncio.gather(*tasks)
    for writer in everyone:
        writer.close()
    return taken_s
