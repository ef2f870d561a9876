"""What the two inference endpoints share: raw ASGI from the body to the last byte.

A generation is closed when its client leaves, streaming or not: a task waits for
`http.disconnect` and closes the scheduler's side, upon which the stream ends and the handler
unwinds by itself. Nothing depends on a generator's `finally` or on task cancellation.

A body that is not short is decoded and checked on a pool that is fair between tenants, and a long
answer is shaped and encoded there: neither holds the event loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.access import require_model
from gateway.api.body import SHORT_BODY_BYTES, ClientGone, JsonBody, read_body
from gateway.api.body_room import Bodies, BodyRoom
from gateway.api.openai.answer import collect_answer, shape_fairly, stream_answer, usage_of
from gateway.api.openai.chunks import Chunks, Envelope
from gateway.api.openai.sampling import requested_tier
from gateway.api.openai.schemas import SamplingFields
from gateway.api.ratelimits import DEGRADED, ratelimit_headers
from gateway.api.token_usage import Usage
from gateway.domain import Principal
from gateway.errors import GatewayError, InvalidRequest
from gateway.services.health import OverloadWatch
from gateway.services.inference import (
    Job,
    LeasedInference,
    ModelRegistry,
    Piece,
    Run,
    ServedModel,
    served_tier,
)

Body = TypeVar("Body", bound=SamplingFields)


class AnswerKind(Protocol[Body]):
    """Say how one endpoint reads a body and shapes an answer."""

    body: JsonBody[Body]
    id_prefix: str

    def jobs(self, body: Body, model: ServedModel, request_id: str) -> list[Job]: ...
    def chunks(self, answer: Answer[Body], *, include_usage: bool) -> Chunks: ...
    def document(self, answer: Answer[Body], pieces: list[Piece]) -> msgspec.Struct: ...


@dataclass(frozen=True, slots=True)
class Answer(Generic[Body]):
    """Hold what shaping an answer needs to know about it."""

    body: Body
    model: ServedModel
    run: Run
    envelope: Envelope

    def usage(self) -> Usage:
        return usage_of(self.run.generations, choices_per_prompt=self.body.n or 1)


class InferenceEndpoint(Generic[Body]):
    """Serve one kind of answer, streaming or not."""

    def __init__(
        self,
        kind: AnswerKind[Body],
        models: ModelRegistry,
        inference: LeasedInference,
        overload: OverloadWatch,
        bodies: Bodies,
    ) -> None:
        self._kind = kind
        self._bodies = bodies
        self._models = models
        self._inference = inference
        self._overload = overload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except ClientGone:
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = self._kind
        principal: Principal = scope["state"]["principal"]
        request_id: str = scope["state"]["request_id"]
        with self._bodies.room(principal.tenant_id) as room:
            body, model, jobs = await self._read(scope, receive, room)
            tier = served_tier(principal, requested_tier(body))
            self._overload.check(tier)
            include_usage = wants_usage(body)
            run = await self._inference.start(
                principal,
                model,
                jobs,
                tier,
                request_id=request_id,
                choices_per_prompt=body.n or 1,
                is_counted=scope["state"]["is_counted"],
            )
        # From here on whatever goes wrong must let go of it.
        async with ClientWatch(receive, run):
            scope["state"]["answer_headers"] = answer_headers(run)
            answer_id, created_s = f"{kind.id_prefix}-{request_id}", int(time.time())
            envelope = Envelope(answer_id, created_s, model.name, model.fingerprint, tier)
            answer = Answer(body, model, run, envelope)
            shape = partial(shape_fairly, self._inference.pool, principal.tenant_id)
            if body.stream:
                chunks = kind.chunks(answer, include_usage=include_usage)
                usage = answer.usage if include_usage else None
                await stream_answer(send, run, chunks, usage, shape)
                return
            pieces = await collect_answer(run)
            document = await shape(pieces, partial(self._document, answer, pieces))
            await Response(document, media_type="application/json")(scope, receive, send)

    async def _read(
        self, scope: Scope, receive: Receive, room: BodyRoom
    ) -> tuple[Body, ServedModel, list[Job]]:
        """Read a body and understand it; its bytes are let go of. Raises: as `_understand`."""
        principal: Principal = scope["state"]["principal"]
        raw = await read_body(scope, receive, room=room)
        understand = partial(self._understand, principal, raw, scope["state"]["request_id"])
        if len(raw) <= SHORT_BODY_BYTES:
            return understand()
        pool = self._inference.pool
        return await pool.run(principal.tenant_id, understand, size_bytes=len(raw))

    def _understand(
        self, principal: Principal, raw: bytes, request_id: str
    ) -> tuple[Body, ServedModel, list[Job]]:
        """Decode and check a body.

        Raises: `InvalidRequest`, `ModelNotFound`, `PermissionDenied`.
        """
        body = self._kind.body.decode(raw)
        model = self._models.get(body.model)
        require_model(principal, model)
        return body, model, self._kind.jobs(body, model, request_id)

    def _document(self, answer: Answer[Body], pieces: list[Piece]) -> bytes:
        return msgspec.json.encode(self._kind.document(answer, pieces))


def answer_headers(run: Run) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell a client how its limits stand."""
    headers = ratelimit_headers(run.standing)
    if run.is_degraded:
        headers |= DEGRADED
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def wants_usage(body: SamplingFields) -> bool:
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

    Use as an async context manager around the answer; the body must have been read.
    """

    def __init__(self, receive: Receive, run: Run) -> None:
        self._receive = receive
        self._run = run

    async def __aenter__(self) -> ClientWatch:
        self._task = asyncio.create_task(self._wait())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        if isinstance(exc, GatewayError):
            self._run.fail(exc)
        self._run.close()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._run.abort()
