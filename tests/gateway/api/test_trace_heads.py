"""What a client says of its trace, and what it is told of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.api.trace_heads import TraceHeads
from gateway.domain.timeline import SpanName
from gateway.services.inference.models import ServedModel
from tests.gateway.api.conftest import open_client
from tests.gateway.api.test_timelines import Heard

pytestmark = pytest.mark.anyio

THEIRS = SpanName(7, 8)
SENT = {"traceparent": f"00-{7:032x}-{8:016x}-01", "tracestate": "a=1"}


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(params=[(), ("acme",)], ids=["stranger", "trusted"])
async def client(
    model: ServedModel, heard: Heard, request: pytest.FixtureRequest
) -> AsyncIterator[httpx.AsyncClient]:
    heads = TraceHeads(0.0, request.param)
    async with open_client(model, ended=heard.ended, traces=heads) as client:
        client.headers["x-trusted"] = str(bool(request.param))
        yield client


async def test_only_a_trusted_tenants_trace_is_continued(
    client: httpx.AsyncClient, heard: Heard
) -> None:
    """A stranger's is remembered as a link; neither decides whether ours is kept."""
    answer = await client.get("/v1/models", headers=SENT)
    timeline = heard.one()
    is_trusted = client.headers["x-trusted"] == "True"
    assert (timeline.parent, timeline.is_continued) == (THEIRS, is_trusted)
    assert timeline.tracestate == ("a=1" if is_trusted else None)
    trace = 7 if is_trusted else int(timeline.request_id, 16)
    assert timeline.trace_id == trace
    version, told, span, flags = answer.headers["traceparent"].split("-")
    assert (version, int(told, 16), flags) == ("00", trace, "00")
    assert span == timeline.request_id[16:]


async def test_who_has_no_key_is_a_stranger(client: httpx.AsyncClient, heard: Heard) -> None:
    """A refused request is in a trace of ours, whatever it says."""
    answer = await client.get("/v1/models", headers=SENT | {"authorization": "Bearer no"})
    timeline = heard.one()
    assert (answer.status_code, timeline.is_continued) == (401, False)
    assert answer.headers["traceparent"].split("-")[1] == timeline.request_id


async def test_what_is_malformed_is_not_there(client: httpx.AsyncClient, heard: Heard) -> None:
    """A header that breaks a rule is as none."""
    await client.get("/v1/models", headers={"traceparent": "00-zz"})
    assert heard.one().parent is None


async def test_without_traces_no_answer_names_one(model: ServedModel) -> None:
    """Nobody could look it up."""
    async with open_client(model) as client:
        answer = await client.get("/v1/models", headers=SENT)
    assert "traceparent" not in answer.headers


async def test_what_is_surely_kept_says_so(model: ServedModel) -> None:
    """The flag of the answer is that of the share, which is known from the beginning."""
    async with open_client(model, traces=TraceHeads(1.0)) as client:
        answer = await client.get("/v1/models")
    assert answer.headers["traceparent"].endswith("-01")
