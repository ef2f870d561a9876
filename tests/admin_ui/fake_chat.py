"""A stand-in for the API's chat endpoint, as the playground asks it: it answers what it was asked.

A prompt of "refuse" meets a limit, and "break" ends a stream with an error.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.domain.timeline import Timeline


class FakeChat:
    """Answer as the endpoint does; `asked` are the bodies, `keys` by which key they came."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = msgspec.json.decode((await receive())["body"])
        self.asked.append(body)
        self.keys.append(dict(scope["headers"])[b"authorization"].decode().removeprefix("Bearer "))
        now_s = time.monotonic()
        scope["state"]["timeline"] = timeline = Timeline("ab" * 16, now_s - 1.5, time.time_ns())
        timeline.tier, prompt = "default", body["messages"][-1]["content"]
        if prompt == "refuse":
            timeline.failed("rate_limit_exceeded", "tenant.rpm")
            message = "Rate limit of tenant 'acme' reached on requests per minute (rpm)."
            await _answer(send, 429, {"error": {"message": message, "type": "x"}})
            return
        timeline.first_token_s, timeline.last_token_s = now_s - 1.2, now_s - 0.2
        timeline.ended_s = now_s
        timeline.input_tokens, timeline.output_tokens, timeline.nano_usd = 42, 11, 8_600
        text = f"You said: {prompt}"
        if not body["stream"]:
            await _answer(send, 200, {"choices": [{"message": {"content": text}}]})
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-own", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        chunks: list[Any] = [
            {"choices": [{"delta": {"content": one}}]} for one in (text[:4], text[4:])
        ]
        if prompt == "break":
            chunks.append({"error": {"message": "The engine failed."}})
        for chunk in chunks:
            data = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _answer(send: Send, status: int, document: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(document)})
