"""What becomes of exceptions: an answer where none has begun, and a word to the server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gateway.api.public import with_errors
from gateway.errors import InvalidRequest

pytestmark = pytest.mark.anyio


class Fails:
    """Raise `error`, with an answer begun if so told."""

    def __init__(self, error: Exception, *, begins: bool) -> None:
        self._error = error
        self._begins = begins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise self._error


async def answered(endpoint: Fails) -> tuple[list[Message], Exception | None]:
    """Ask, and return what was sent and what came out."""
    app = with_errors([Route("/x", endpoint)])
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "raw_path": b"/x",
        "query_string": b"",
        "root_path": "",
        "headers": [],
    }
    try:
        await app(scope, receive, send)
    except Exception as exc:
        return sent, exc
    return sent, None


def statuses(sent: list[Message]) -> list[int]:
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


async def test_what_is_raised_on_purpose_is_answered_and_over() -> None:
    """The server hears nothing of it, and the error is as good as new for who raises it again."""
    error = InvalidRequest("No.", param="x")
    sent, raised = await answered(Fails(error, begins=False))
    assert statuses(sent) == [400]
    assert msgspec.json.decode(sent[1]["body"])["error"]["param"] == "x"
    assert raised is None
    assert error.__traceback__ is None


async def test_a_bug_is_answered_and_goes_on_to_the_server() -> None:
    """Its caller learns that it is ours and the connection over, and the operator where it was."""
    error = ZeroDivisionError("a detail")
    sent, raised = await answered(Fails(error, begins=False))
    assert statuses(sent) == [500]
    assert (b"connection", b"close") in sent[0]["headers"]
    assert b"a detail" not in sent[1]["body"]
    assert raised is error


@pytest.mark.parametrize("error", [InvalidRequest("No."), ZeroDivisionError("a detail")])
async def test_no_second_answer_is_begun(error: Exception) -> None:
    """One that broke off is the server's to end, whatever broke it."""
    sent, raised = await answered(Fails(error, begins=True))
    assert statuses(sent) == [200]
    assert sent[-1]["body"] == b"a"
    assert raised is error
