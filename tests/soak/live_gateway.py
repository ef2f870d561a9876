"""A gateway inside the measuring process, so that its event loop and its engine can be watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app.gateway import open_gateway
from gateway.app.serving import listening, url_of
from gateway.http.server import ApiServer
from gateway.services.inference.models import ServedModel
from gateway.settings import Settings

LAG_INTERVAL_S = 0.005


@dataclass
class LiveGateway:
    """Hold a served API: its URL, a key, and the model to look into."""

    api: str
    key: str
    model: ServedModel


@asynccontextmanager
async def live_gateway(data_dir: Path, **settings: Any) -> AsyncIterator[LiveGateway]:
    """Serve on a free port until left."""
    chosen = Settings(data_dir=data_dir, **settings)
    with listening("127.0.0.1", 0) as sock:
        async with open_gateway(chosen) as gateway:
            assert gateway.first_start is not None
            server = ApiServer(gateway.public)
            running = asyncio.create_task(server.serve([sock]))
            await server.wait_started()
            [model] = gateway.models
            yield LiveGateway(f"{url_of(sock)}/v1", gateway.first_start.keys[0].token, model)
            server.should_exit = True
            await running


class LoopLag:
    """Sample how late the event loop wakes a sleeper; `samples_s` holds the delays."""

    def __init__(self) -> None:
        self.samples_s: list[float] = []

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self.samples_s.append(loop.time() - due)


def percentile(values: list[float], q: float) -> float:
    """Return the nearest-rank percentile; `q` in 0…1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def rss_mib() -> float:
    """Return this process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")
