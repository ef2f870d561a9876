"""The routes of metrics: who may, in which format, and on which thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import anyio
import httpx
import pytest
from prometheus_client.metrics_core import Metric

from gateway.api.admin.metrics import metrics_routes
from gateway.api.public import with_errors
from gateway.domain.admin import Admin
from gateway.errors import AuthenticationFailed
from gateway.telemetry.families import OVERLOAD
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.series import metric_of

pytestmark = pytest.mark.anyio


class Nobody:
    """Let nobody in."""

    async def authenticate(
        self, text: str, *, from_memory: bool = False, is_change: bool = False, reads: int = 1
    ) -> Admin:
        raise AuthenticationFailed("no")


class Slow:
    """Take a while, and remember who asked."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def collect(self) -> Iterator[Metric]:
        self.threads.append(threading.get_ident())
        time.sleep(0.1)
        yield metric_of(OVERLOAD, [((), 0)])


def client_of(metrics: Metrics, *, is_public: bool) -> httpx.AsyncClient:
    app = with_errors([*metrics_routes(metrics, Nobody(), is_public=is_public)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin")


async def test_without_a_token_there_is_nothing_unless_it_is_public() -> None:
    """What is public is `/metrics` alone: the API beside it asks for a token as ever."""
    statuses = []
    for is_public in (False, True):
        async with client_of(Metrics(), is_public=is_public) as client:
            for path in ("/metrics", "/admin/v1/metrics"):
                statuses.append((await client.get(path)).status_code)
    assert statuses == [401, 401, 200, 401]


async def test_the_scraper_chooses_the_format() -> None:
    """Plain text unless OpenMetrics is asked for, as Prometheus does."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    async with client_of(Metrics(), is_public=True) as client:
        plain = await client.get("/metrics")
        opened = await client.get("/metrics", headers={"accept": accept})
    assert plain.headers["content-type"].startswith("text/plain")
    assert opened.headers["content-type"].startswith("application/openmetrics-text")
    assert opened.text.endswith("# EOF\n")


async def test_a_scrape_is_written_once_and_off_the_event_loop() -> None:
    """Ten who ask at a time cost one; the loop turns while it is written."""
    metrics, slow = Metrics(), Slow()
    metrics.add(slow)
    texts = set()
    async with client_of(metrics, is_public=True) as client, anyio.create_task_group() as group:

        async def scrape() -> None:
            texts.add((await client.get("/metrics")).text)

        for _ in range(10):
            group.start_soon(scrape)
    assert len(texts) == len(slow.threads) == 1
    assert slow.threads[0] != threading.get_ident()
