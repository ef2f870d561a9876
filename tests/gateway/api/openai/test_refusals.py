"""What a client sees of a scheduler's refusal, and of a request whose time passed in the queue."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from scheduler.errors import Rejected
from scheduler.request import FinishReason, RejectCode
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "sim",
    "messages": [{"role": "user", "content": "Hello?"}],
    "max_tokens": 4,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "kind", "shown"),
    [
        (RejectCode.TENANT_LIMITED, 429, "rate_limit_error", "rate_limit_exceeded"),
        (RejectCode.OVERLOADED, 503, "server_error", "overloaded"),
        (RejectCode.UNAVAILABLE, 503, "server_error", "unavailable"),
        (RejectCode.CONTEXT_LENGTH_EXCEEDED, 400, "invalid_request_error", None),
    ],
)
async def test_each_refusal_has_its_status(
    scripted_client: httpx.AsyncClient,
    scripted: ScriptedService,
    stream: bool,
    code: RejectCode,
    status: int,
    kind: str,
    shown: str | None,
) -> None:
    """The tenant's own limit is a 429, our capacity a 503, streaming or not."""
    scripted.refusal = Rejected("Too much.", code=code, retry_after_s=None)
    response = await scripted_client.post(PATH, json=BODY | {"stream": stream})
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["message"], error["type"]) == ("Too much.", kind)
    assert error["code"] == (shown or code.value)
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("code", [RejectCode.TENANT_LIMITED, RejectCode.OVERLOADED])
async def test_a_refusal_says_when_to_come_back(
    scripted_client: httpx.AsyncClient, scripted: ScriptedService, code: RejectCode
) -> None:
    """The scheduler's time goes out to the millisecond, and in seconds rounded up."""
    scripted.refusal = Rejected("Later.", code=code, retry_after_s=2.3456)
    response = await scripted_client.post(PATH, json=BODY)
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2346"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_expired_in_the_queue_is_a_503(
    scripted_client: httpx.AsyncClient, scripted: ScriptedService, stream: bool
) -> None:
    """Before the first byte, a request whose time passed is answered as overload."""
    scripted.script = [((), FinishReason.EXPIRED)]
    response = await scripted_client.post(PATH, json=BODY | {"stream": stream})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "overloaded"


async def test_what_expires_in_a_stream_is_an_error_event(
    scripted_client: httpx.AsyncClient, scripted: ScriptedService
) -> None:
    """A request that was sent back after its first token ends with an error and no `[DONE]`."""
    scripted.script = [((400,), None), ((), FinishReason.EXPIRED)]
    response = await scripted_client.post(PATH, json=BODY | {"stream": True})
    assert response.status_code == 200
    *_, last = [line for line in response.text.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "overloaded"
    assert "[DONE]" not in response.text
