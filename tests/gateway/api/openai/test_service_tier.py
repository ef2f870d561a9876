"""`service_tier`: what a request may ask for, and what it gets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from scheduler.request import Band, Slo
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "sim", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 4},
    TEXT: {"model": "sim", "prompt": "Hello?", "max_tokens": 4},
}
PRIORITY, DEFAULT, FLEX = "priority-key", "test-key", "flex-key"


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("key", "asked", "served"),
    [
        (DEFAULT, None, "default"),
        (DEFAULT, "auto", "default"),
        (DEFAULT, "default", "default"),
        (DEFAULT, "flex", "flex"),
        (DEFAULT, "priority", "default"),
        (PRIORITY, "auto", "priority"),
        (PRIORITY, "priority", "priority"),
        (PRIORITY, "default", "default"),
        (PRIORITY, "flex", "flex"),
        (FLEX, None, "flex"),
        (FLEX, "default", "flex"),
        (FLEX, "priority", "flex"),
    ],
)
async def test_a_request_can_only_lower_its_keys_tier(
    scripted_client: httpx.AsyncClient,
    scripted: ScriptedService,
    path: str,
    key: str,
    asked: str | None,
    served: str,
) -> None:
    """`auto` is the key's best, more than that is served at it, and the answer says what it was."""
    response = await scripted_client.post(
        path,
        json=BODIES[path] | {"service_tier": asked},
        headers={"authorization": f"Bearer {key}"},
    )
    assert response.json()["service_tier"] == served
    assert [request.band for request in scripted.requests] == [Band[served.upper()]]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_every_chunk_says_the_tier(client: httpx.AsyncClient, path: str) -> None:
    """Streamed, each chunk has the tier that was used, the usage chunk too."""
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post(path, json=BODIES[path] | streamed | {"service_tier": "flex"})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    assert {json.loads(line)["service_tier"] for line in lines} == {"flex"}


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_an_unknown_tier_names_the_known_ones(client: httpx.AsyncClient, path: str) -> None:
    """A tier that does not exist is refused with those that do."""
    response = await client.post(path, json=BODIES[path] | {"service_tier": "scale"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "service_tier"
    assert all(tier in error["message"] for tier in ("auto", "default", "flex", "priority"))


async def test_a_tenants_promises_reach_the_scheduler(
    scripted_client: httpx.AsyncClient, scripted: ScriptedService
) -> None:
    """Milliseconds of the tenant are seconds of the request; what is not promised stays open."""
    await scripted_client.post(CHAT, json=BODIES[CHAT])
    assert [request.slo for request in scripted.requests] == [Slo(0.5, None, 0.06)]


async def test_whose_a_tenant_is_reaches_the_scheduler(
    scripted_client: httpx.AsyncClient, scripted: ScriptedService
) -> None:
    """A request carries its tenant's org and that one's weight; a tenant of none has no org."""
    for key in (FLEX, DEFAULT):
        headers = {"authorization": f"Bearer {key}"}
        await scripted_client.post(CHAT, json=BODIES[CHAT], headers=headers)
    shares = [(one.organisation_id, one.organisation_weight) for one in scripted.requests]
    assert shares == [("00000000-0000-0000-0000-000000000007", 2.0), ("", 1.0)]
