"""What the two inference endpoints share: raw ASGI from the body to the last byte.

A generation is closed when its client leaves, streaming or not: our server calls back, or a task
waits for `http.disconnect`, and the scheduler's side is closed, upon which the stream ends and the
handler unwinds by itself. Nothing depends on a generator's `finally` or on task cancellation.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic

from starlette.types import Receive, Scope, Send

from gateway.api.body import ClientGone, read_parts
from gateway.api.client_left import CLIENT_LEFT, OnLeft
from gateway.api.errors import standing_headers
from gateway.api.held_bytes import GrowingRoom, HeldBytes, Room
from gateway.api.openai.answer import (
    Gathering,
    Shape,
    collect_answer,
    send_document,
    shape_fairly,
    stream_answer,
)
from gateway.api.openai.chunks import (
    Envelope,
    Tail,
    no_usage,
    null_usage,
    running_usage,
)
from gateway.api.openai.kinds import (
    Answer,
    AnswerKind,
    Body,
    Understanding,
    Understood,
    shape_whole,
    take_room,
)
from gateway.api.openai.sampling import requested_tier
from gateway.api.openai.schemas import RequestFields
from gateway.api.ratelimits import DEGRADED
from gateway.api.write_now import WRITE_NOW
from gateway.domain import Principal
from gateway.domain.timeline import Timeline
from gateway.errors import GatewayError, InvalidRequest
from gateway.services.health import OverloadWatch
from gateway.services.inference import (
    LeasedInference,
    ModelRegistry,
    Run,
    sender_of,
    served_tier,
)
from gateway.telemetry import names

# The prompt alone takes longer than the time to the first token that the tenant is promised.
_UNPROMISED: Final = {"x-sluice-promise": "none"}


class InferenceEndpoint(Generic[Body]):
    """Serve one kind of answer, streaming or not."""

    def __init__(
        self,
        kind: AnswerKind[Body],
        models: ModelRegistry,
        inference: LeasedInference,
        overload: OverloadWatch,
        bodies: HeldBytes,
        answers: HeldBytes,
    ) -> None:
        self._kind = kind
        self._bodies = bodies
        self._answers = answers
        self._understanding = Understanding(kind, models, inference.pool)
        self._inference = inference
        self._overload = overload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant_id = scope["state"]["principal"].tenant_id
        with self._answers.growing_room(tenant_id) as gathered:
            try:
                await self._answer(scope, receive, send, gathered)
            except ClientGone:
                return

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, gathered: GrowingRoom
    ) -> None:
        kind = self._kind
        principal: Principal = scope["state"]["principal"]
        request_id: str = scope["state"]["request_id"]
        timeline: Timeline = scope["state"]["timeline"]
        with self._bodies.room(principal.tenant_id) as room:
            understood = await self._read(scope, receive, room)
            body, model, jobs, ignored = understood
            timeline.is_stream = bool(body.stream)
            tier = served_tier(principal, requested_tier(body))
            sender = sender_of(principal, tier)
            self._overload.check(tier, model.name, is_light=lambda: model.service.is_light(sender))
            include_usage = wants_usage(body)
            take_room(understood, gathered)
            run = await self._inference.start(
                principal,
                model,
                jobs,
                tier,
                request_id=request_id,
                choices_per_prompt=body.n or 1,
                is_counted=scope["state"]["is_counted"],
                timeline=timeline,
            )
        scope["state"]["is_counted"] = True
        # From here on whatever goes wrong must let go of it.
        async with ClientWatch(receive, run, scope["state"].get(CLIENT_LEFT)):
            heads = answer_headers(run, scope["path"])
            scope["state"]["answer_headers"] = [*heads, *ignored.headers()]
            answer_id, created_s = f"{kind.id_prefix}{request_id}", int(time.time())
            envelope = Envelope(answer_id, created_s, model.name, model.fingerprint, tier)
            answer = Answer(body, model, run, envelope)
            if body.stream:
                await self._stream(scope, send, answer, include_usage=include_usage)
                return
            await self._send_whole(scope, send, answer, gathered)

    async def _stream(
        self, scope: Scope, send: Send, answer: Answer[Body], *, include_usage: bool
    ) -> None:
        """Send an answer as events, as they come."""
        tail = self._tail(answer, include_usage=include_usage)
        usage = answer.usage if include_usage else None
        chunks = self._kind.chunks(answer, tail=tail)
        now = scope["state"].get(WRITE_NOW)
        await stream_answer(send, answer.run, chunks, usage, self._shape(scope), now=now)

    def _shape(self, scope: Scope) -> Shape:
        principal: Principal = scope["state"]["principal"]
        return partial(shape_fairly, self._inference.pool, principal.tenant_id)

    @staticmethod
    def _tail(answer: Answer[Body], *, include_usage: bool) -> Tail:
        options = answer.body.stream_options
        if include_usage and options is not None and options.continuous_usage_stats:
            return running_usage(answer.usage)
        return null_usage if include_usage else no_usage

    async def _send_whole(
        self, scope: Scope, send: Send, answer: Answer[Body], room: GrowingRoom
    ) -> None:
        """Gather an answer and send it as one document."""
        tenant_id = scope["state"]["principal"].tenant_id
        gatherings = [Gathering() for _ in answer.run.generations]
        await collect_answer(answer.run, gatherings, room)
        pool = self._inference.pool
        parts = await shape_whole(self._kind, answer, gatherings, pool, room, tenant_id)
        await send_document(send, parts)

    async def _read(self, scope: Scope, receive: Receive, room: Room) -> Understood[Body]:
        """Read a body and understand it; its bytes are let go of. Raises: as `Understanding`."""
        state = scope["state"]
        timeline: Timeline = state["timeline"]
        timeline.enter(names.READ, time.monotonic())
        parts = await read_parts(scope, receive, room=room)
        timeline.note(names.BODY_BYTES, sum(map(len, parts)))
        timeline.enter(names.VALIDATE, time.monotonic())
        return await self._understand(state, parts, room)

    async def _understand(
        self, state: dict[str, Any], parts: list[bytes], room: Room
    ) -> Understood[Body]:
        return await self._understanding.understand(state["principal"], parts, state["request_id"])


def answer_headers(run: Run, path: str) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell a client how its limits stand, and what it is not promised."""
    headers = standing_headers(run.standing, path)
    if run.is_degraded:
        headers |= DEGRADED
    if not run.is_promised:
        headers |= _UNPROMISED
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def wants_usage(body: RequestFields) -> bool:
    """Tell whether the stream ends with a usage chunk. Raises: `InvalidRequest`."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequest(
            "'stream_options' is only allowed when 'stream' is true.",
            param="stream_options",
        )
    return body.stream_options.include_usage


class ClientWatch:
    """Abort a run as soon as its client is gone, and close it in any case at the end.

    Use as an async context manager around the answer; the body must have been read. A server that
    has no `on_left` is asked by a task.
    """

    def __init__(self, receive: Receive, run: Run, on_left: OnLeft | None = None) -> None:
        self._receive = receive
        self._run = run
        self._on_left = on_left
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ClientWatch:
        if self._on_left is not None:
            self._on_left(self._run.abort)
        else:
            self._task = asyncio.create_task(self._wait())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._on_left is not None:
            self._on_left(None)
        if self._task is not None:
            self._task.cancel()
            # It keeps the error it ends with, whose frame has this: a circle.
            self._task = None
        if isinstance(exc, GatewayError):
            self._run.fail(exc)
        self._run.close()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._run.abort()
