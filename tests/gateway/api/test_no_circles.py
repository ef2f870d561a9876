"""What a request leaves behind is let go of at once: no circle of its objects waits to be found.

A full collection holds every thread, for as long as there is to look through.
"""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any, Final

import pytest
from starlette.types import ASGIApp, Message, Scope

from gateway.api.front import Front
from gateway.api.health import Health
from gateway.services.fair_pool import FairPool
from gateway.services.health.heartbeat import Heartbeat
from gateway.services.health.lifecycle import Lifecycle
from gateway.services.health.probes import Probes
from gateway.services.inference.models import ServedModel
from gateway.services.inference.service import InferenceService
from tests.fake_quotas import leased
from tests.gateway.api.conftest import KEY, MODEL, api_over

pytestmark = pytest.mark.anyio

NUM_REQUESTS: Final = 20
# Objects of a request; a circle has forty at least.
FEW: Final = 5


class Cycle:
    """Send and receive for an application, and know its scope, as a server's own object does."""

    def __init__(self, scope: Scope, body: bytes, *, leaves: bool) -> None:
        self.scope = scope
        self.statuses: list[int] = []
        self._messages: list[Message] = [{"type": "http.request", "body": body}]
        if leaves:
            self._messages.append({"type": "http.disconnect"})

    async def run(self, app: ASGIApp) -> None:
        await app(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])


async def ask(app: ASGIApp, body: dict[str, Any], *, leaves: bool = False) -> list[int]:
    """Send a body and return the status of the answer, if there is one."""
    data = json.dumps({"model": MODEL, "prompt": "x"} | body).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-length": str(len(data))}
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    cycle = Cycle(scope, data, leaves=leaves)
    await cycle.run(app)
    return cycle.statuses


@pytest.mark.parametrize(
    ("body", "leaves", "statuses"),
    [
        ({"max_tokens": 4}, False, [200]),
        ({"max_tokens": 4, "n": 3}, False, [200]),
        ({"max_tokens": 4, "stream": True}, False, [200]),
        ({"max_tokens": -1}, False, [400]),
        ({"max_tokens": 200}, True, []),
    ],
    ids=["whole", "choices", "streamed", "refused", "left"],
)
async def test_a_request_leaves_no_circle(
    model: ServedModel, body: dict[str, Any], leaves: bool, statuses: list[int]
) -> None:
    """With the collector off, nothing of twenty requests is left once each has ended."""
    front = Front(Health(Probes(Lifecycle(), Heartbeat())))
    inference = InferenceService(salt_key=b"salt" * 8, pool=FairPool())
    async with leased(inference) as leases:
        front.app = api_over(leases, model)
        for _ in range(3):
            assert (await ask(front, body, leaves=leaves))[: len(statuses)] == statuses
        await asyncio.sleep(0.1)
        gc.collect()
        gc.disable()
        try:
            for _ in range(NUM_REQUESTS):
                await ask(front, body, leaves=leaves)
            await asyncio.sleep(0.1)
            num_left = gc.collect()
        finally:
            gc.enable()
    inference.pool.close()
    assert num_left < FEW * NUM_REQUESTS
