"""Chats of the playground: each is a request to the API's own endpoint, by a key that is named.

The answer is the endpoint's: whole, for a page, or as it comes, for a script. What it took and
cost is read from the request's timeline, which is what its bill and its record are made of.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admin_ui import formats
from gateway.api.sse import named_event
from gateway.domain.timeline import Timeline

PATH: Final = "/v1/chat/completions"
_HEADERS: Final = (b"content-type", b"cache-control", b"retry-after", b"x-accel-buffering")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Say what is asked, by which key; `messages` are in the API's shape."""

    kid: str
    model: str
    messages: Sequence[Mapping[str, str]]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    """Hold an answer, or in `error` why there is none, with what it took as pages write it."""

    status: int
    text: str
    error: str
    limit: str
    figures: Mapping[str, str]


class Playground:
    """Ask `api`, which takes a key's public id for its secret; `models` are the names served."""

    def __init__(self, api: ASGIApp, models: Sequence[str]) -> None:
        self._api = api
        self.models = tuple(models)

    async def ask(self, request: Request, chat: Chat) -> Answered:
        """Return the answer once it is whole."""
        scope, body = _inner(request.scope, chat, is_stream=False)
        status, parts = 500, []

        async def keep(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            parts.append(message.get("body", b""))

        await self._api(scope, _reading(body, request.receive), keep)
        timeline: Timeline = scope["state"]["timeline"]
        text, error = _read(status, b"".join(parts))
        return Answered(status, text, error, timeline.limit, figures_of(timeline))

    def stream(self, chat: Chat) -> ChatStream:
        """Answer as the endpoint does, its events followed by one of `figures`."""
        return ChatStream(self._api, chat)


class ChatStream(Response):
    """Send an answer on as it comes; one that is refused keeps its status and its words."""

    def __init__(self, api: ASGIApp, chat: Chat) -> None:
        super().__init__()
        self._api = api
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner, body = _inner(scope, self._chat, is_stream=True)
        has_begun = is_stream = False

        async def relay(message: Message) -> None:
            nonlocal has_begun, is_stream
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() in _HEADERS]
                message, has_begun = {**message, "headers": kept}, True
                is_stream = any(value.startswith(b"text/event-stream") for _, value in kept)
            elif is_stream:
                # The last event is ours.
                message = {**message, "more_body": True}
            await send(message)

        await self._api(inner, _reading(body, receive), relay)
        if is_stream and has_begun:
            figures = figures_of(inner["state"]["timeline"])
            last = named_event(b"figures", msgspec.json.encode(figures))
            await send({"type": "http.response.body", "body": last, "more_body": False})


def figures_of(timeline: Timeline) -> dict[str, str]:
    """Write what a request took and cost; a time that was not is a dash."""
    first_s, last_s = timeline.first_token_s, timeline.last_token_s
    ended_s = timeline.ended_s or time.monotonic()
    num_gaps = timeline.output_tokens - 1
    gap_s = None
    if first_s is not None and last_s is not None and num_gaps > 0:
        gap_s = (last_s - first_s) / num_gaps
    return {
        "id": f"req_{timeline.request_id}",
        "ttft": formats.seconds(None if first_s is None else first_s - timeline.began_s),
        "tpot": formats.seconds(gap_s),
        "whole": formats.seconds(ended_s - timeline.began_s),
        "input": formats.whole(timeline.input_tokens),
        "cached": formats.whole(timeline.cached_tokens),
        "output": formats.whole(timeline.output_tokens),
        "cost": formats.money(timeline.nano_usd),
        "class": timeline.tier or formats.UNKNOWN,
    }


def _inner(outer: Scope, chat: Chat, *, is_stream: bool) -> tuple[Scope, bytes]:
    """Make the request to the endpoint; it comes from where the page's reader is."""
    asked: dict[str, Any] = {
        "model": chat.model,
        "messages": chat.messages,
        "max_completion_tokens": chat.max_tokens,
        "stream": is_stream,
    }
    body = msgspec.json.encode(asked)
    scope: Scope = {
        "type": "http",
        "asgi": outer.get("asgi", {"version": "3.0"}),
        "http_version": "1.1",
        "method": "POST",
        "scheme": outer.get("scheme", "http"),
        "path": PATH,
        "raw_path": PATH.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"authorization", b"Bearer " + chat.kid.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": outer.get("client"),
        "server": outer.get("server"),
        "state": {},
    }
    return scope, body


def _reading(body: bytes, receive: Receive) -> Receive:
    """Read the body, and after it whether the page's reader has gone."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_inner() -> Message:
        return left.pop() if left else await receive()

    return receive_inner


def _read(status: int, raw: bytes) -> tuple[str, str]:
    """Return the text of an answer, and what is wrong where it is none."""
    try:
        document = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return "", "There was no answer."
    if status != 200:
        return "", str(document["error"]["message"])
    return str(document["choices"][0]["message"]["content"] or ""), ""
