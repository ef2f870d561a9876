"""What a request is counted as, whenever it is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from gateway.api.body import SHORT_BODY_BYTES
from gateway.api.public import public_app
from gateway.domain import Principal
from gateway.domain.counters import CounterReply, Op, Reserve, Settle
from gateway.domain.quota import Quota
from gateway.services.constraints import Constraints
from gateway.services.fair_pool import FairPool
from gateway.services.health import OverloadWatch
from gateway.services.inference import LeasedInference, ModelRegistry
from gateway.services.inference.models import ServedModel
from gateway.services.inference.service import InferenceService
from gateway.services.quotas import Entry, QuotaService
from tests.fake_quotas import OpenCounters, open_quotas
from tests.gateway.api.conftest import serving_health
from tests.gateway.services.quotas.scripted import terms

pytestmark = pytest.mark.anyio

ASKED: dict[str, Any] = {"model": "demo", "prompt": "x", "max_tokens": 60}


class Counting(OpenCounters):
    """Count the requests that were held, and those that were used."""

    def __init__(self) -> None:
        super().__init__()
        self.num_held = self.num_used = 0

    async def run(self, ops: Sequence[Op]) -> CounterReply:
        self.num_held += sum(op.amounts.requests for op in ops if isinstance(op, Reserve))
        self.num_used += sum(op.used.requests for op in ops if isinstance(op, Settle))
        return await super().run(ops)


class Limited:
    """Know a tenant with a limit on its requests."""

    async def authenticate(self, token: str, timeline: object = None) -> Principal:
        return terms(Quota(rpm=10)).principal


@pytest.fixture
async def counters() -> Counting:
    return Counting()


@pytest.fixture
async def quotas(counters: Counting) -> QuotaService:
    return open_quotas(counters=counters)


@pytest.fixture
async def client(demo: ServedModel, quotas: QuotaService) -> AsyncIterator[httpx.AsyncClient]:
    constraints = Constraints()
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool(), constraints=constraints)
    app = public_app(
        models=ModelRegistry([demo]),
        inference=LeasedInference(inference, quotas, Entry(quotas, short_bytes=SHORT_BODY_BYTES)),
        overload=OverloadWatch({}, memory_share=lambda: 0.0),
        auth=Limited(),
        health=serving_health([demo]),
        version="test",
    )
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": "Bearer x"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers=headers, timeout=60
    ) as client:
        yield client
    inference.pool.close()
    constraints.close()


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 200),
        ({"temperature": 3}, 400),
        ({"guided_choice": ["yes"], "min_tokens": 50}, 400),
    ],
    ids=["answered", "refused at once", "refused in the midst"],
)
async def test_a_request_is_counted_once(
    client: httpx.AsyncClient,
    quotas: QuotaService,
    counters: Counting,
    asked: dict[str, Any],
    status: int,
) -> None:
    """Answered, refused before it began, or refused because its form could not be met."""
    response = await client.post("/v1/completions", json=ASKED | asked)
    assert response.status_code == status, response.text
    await quotas.link.flush()
    await quotas.link.close()
    assert (counters.num_held, counters.num_used) == (1, 1)
