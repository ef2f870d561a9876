"""What clients of an overloaded server get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import httpx
import pytest

from gateway.services.health.overload import Level
from gateway.services.health.overload_watch import OverloadWatch
from gateway.services.inference import ServedModel
from scheduler.request import Sender
from scheduler.service import EngineService
from scheduler.state import Load
from tests.gateway.api.conftest import MODEL, TIER_KEYS, open_client

pytestmark = pytest.mark.anyio

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


class Full:
    """Have a queue of which a share is taken."""

    def __init__(self, queue: float) -> None:
        self._queue = queue

    def load(self) -> Load:
        return Load(kv=0.0, queue=self._queue, default_wait=0.0, flex_wait=0.0)


def press(overload: OverloadWatch, *, queue: float = 0.0, lag_s: float = 0.0) -> None:
    """Let a load hold for a second."""
    overload._schedulers = {MODEL: Full(queue)}
    for quarter in range(5):
        overload.look(quarter / 4, lag_s=lag_s)


async def ask(client: httpx.AsyncClient, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return await client.post("/v1/chat/completions", json=BODY, headers=headers)


class Crowded:
    """A model's service that holds much of whoever asks."""

    def __init__(self, service: EngineService) -> None:
        self._service = service

    def is_light(self, sender: Sender) -> bool:
        assert sender.tenant_id == str(UUID(int=2))
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


async def test_tiers_are_given_up_from_the_lowest(
    model: ServedModel, overload: OverloadWatch
) -> None:
    """A half-full queue is closed to flex, a nearly full one to all but priority."""
    crowded = replace(model, service=cast(EngineService, Crowded(model.service)))
    async with open_client(crowded, overload) as pressed_client:
        await _give_up_tiers(pressed_client, overload)


async def test_a_queue_full_of_others_requests_is_open_to_who_has_none(
    pressed_client: httpx.AsyncClient, overload: OverloadWatch
) -> None:
    """What a tenant has not sent does not have its requests refused."""
    press(overload, queue=0.95)
    assert (await ask(pressed_client)).status_code == 200


async def _give_up_tiers(pressed_client: httpx.AsyncClient, overload: OverloadWatch) -> None:
    priority, flex = TIER_KEYS
    assert (await ask(pressed_client, flex)).status_code == 200
    press(overload, queue=0.6)
    refused = await ask(pressed_client, flex)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    assert (await ask(pressed_client)).status_code == 200
    press(overload, queue=0.95)
    assert (await ask(pressed_client)).status_code == 503
    assert (await ask(pressed_client, priority)).status_code == 200


async def test_a_saturated_server_reads_no_body(
    pressed_client: httpx.AsyncClient, overload: OverloadWatch
) -> None:
    """The answer comes before the body, for every tier, and ends the connection."""
    press(overload, lag_s=1.0)
    assert overload.level is Level.SATURATED

    async def body_that_must_not_be_read():  # type: ignore[no-untyped-def]
        raise AssertionError("the body was read")
        yield b""

    answer = await pressed_client.post(
        "/v1/chat/completions",
        content=body_that_must_not_be_read(),
        headers={"authorization": f"Bearer {next(iter(TIER_KEYS))}"},
    )
    assert answer.status_code == 503
    assert answer.headers["connection"] == "close"


async def test_a_stranger_learns_nothing_of_the_load(
    pressed_client: httpx.AsyncClient, overload: OverloadWatch
) -> None:
    """Without a key the answer is the same however hard the server is pressed."""
    press(overload, lag_s=1.0)
    assert (await ask(pressed_client, "nobody")).status_code == 401
