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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.api.access import require_model
from gateway.api.body import SHORT_BODY_BYTES, ClientGone, read_parts
from gateway.api.held_bytes import HeldBytes, Room
from gateway.api.json_parts import encode_in_parts, giving_way
from gateway.api.openai.answer import (
    Gathering,
    collect_answer,
    send_document,
    shape_fairly,
    stream_answer,
    usage_of,
)
from gateway.api.openai.chunks import (
    Chunks,
    Envelope,
    Tail,
    no_usage,
    null_usage,
    running_usage,
)
from gateway.api.openai.parameters import STREAM_OPTIONS, Fates
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.sampling import check_labels, requested_tier
from gateway.api.openai.schemas import ChatCompletion, SamplingFields, TextCompletion
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

# What is gathered is shaped where it stands up to so much, in a millisecond; more, on a thread.
_FEW_HELD_BYTES: Final = 16 << 10
_FEW_TOKENS: Final = 1 << 16
# The prompt alone takes longer than the time to the first token that the tenant is promised.
_UNPROMISED: Final = {"x-sluice-promise": "none"}
# A decoder keeps the interpreter for milliseconds at a time.
_DECODE_REST_RATIO: Final = 5.0
_STREAM: Final = Fates(STREAM_OPTIONS)


class AnswerKind(Protocol[Body]):
    """Say how one endpoint reads a body and shapes an answer."""

    reader: Reader[Body]
    id_prefix: str

    def jobs(
        self, body: Body, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job]: ...
    def chunks(self, answer: Answer[Body], *, tail: Tail) -> Chunks: ...
    def document(
        self, answer: Answer[Body], pieces: list[Piece]
    ) -> ChatCompletion | TextCompletion: ...


@dataclass(frozen=True, slots=True)
class Answer(Generic[Body]):
    """Hold what shaping an answer needs to know about it."""

    body: Body
    model: ServedModel
    run: Run
    envelope: Envelope

    @property
    def num_tokens(self) -> int:
        """Count the output tokens of all choices."""
        return sum(generation.num_output_tokens for generation in self.run.generations)

    def usage(self) -> Usage:
        return usage_of(self.run.generations, choices_per_prompt=self.body.n or 1)


class _Understood(NamedTuple, Generic[Body]):
    body: Body
    model: ServedModel
    jobs: list[Job]
    ignored: Ignored


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
            body, model, jobs, ignored = await self._read(scope, receive, room)
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
            scope["state"]["answer_headers"] = [*answer_headers(run), *ignored.headers()]
            answer_id, created_s = f"{kind.id_prefix}-{request_id}", int(time.time())
            envelope = Envelope(answer_id, created_s, model.name, model.fingerprint, tier)
            answer = Answer(body, model, run, envelope)
            shape = partial(shape_fairly, self._inference.pool, principal.tenant_id)
            if body.stream:
                chunks = kind.chunks(answer, tail=self._tail(answer, include_usage=include_usage))
                usage = answer.usage if include_usage else None
                await stream_answer(send, run, chunks, usage, shape)
                return
            with self._answers.room(principal.tenant_id) as room:
                await self._send_whole(send, principal.tenant_id, answer, room)

    @staticmethod
    def _tail(answer: Answer[Body], *, include_usage: bool) -> Tail:
        options = answer.body.stream_options
        if include_usage and options is not None and options.continuous_usage_stats:
            return running_usage(answer.usage)
        return null_usage if include_usage else no_usage

    async def _send_whole(
        self, send: Send, tenant_id: UUID, answer: Answer[Body], room: Room
    ) -> None:
        """Gather an answer and send it as one document."""
        run = answer.run
        gatherings = [Gathering() for _ in run.generations]
        shape = partial(self._document, answer, gatherings)
        await collect_answer(run, gatherings, room)
        if room.num_bytes > _FEW_HELD_BYTES or answer.num_tokens > _FEW_TOKENS:
            parts = await self._inference.pool.run(tenant_id, lambda: list(giving_way(shape())))
        else:
            parts = list(shape())
        await send_document(send, parts)

    async def _read(self, scope: Scope, receive: Receive, room: Room) -> _Understood[Body]:
        """Read a body and understand it; its bytes are let go of. Raises: as `_understand`."""
        principal: Principal = scope["state"]["principal"]
        parts = await read_parts(scope, receive, room=room)
        understand = partial(self._understand, principal, parts, scope["state"]["request_id"])
        size_bytes = sum(map(len, parts))
        if size_bytes <= SHORT_BODY_BYTES:
            return understand()
        pool = self._inference.pool
        return await pool.run(
            principal.tenant_id, understand, size_bytes=size_bytes, rest_ratio=_DECODE_REST_RATIO
        )

    def _understand(
        self, principal: Principal, parts: list[bytes], request_id: str
    ) -> _Understood[Body]:
        """Decode and check a body.

        Raises: `InvalidRequest`, `ModelNotFound`, `PermissionDenied`.
        """
        ignored = Ignored()
        body = self._kind.reader.read(b"".join(parts), ignored)
        if not body.model:
            raise InvalidRequest("'model' is empty; GET /v1/models lists them.", param="model")
        model = self._models.get(body.model)
        require_model(principal, model)
        check_labels(body)
        if body.priority is not None and body.priority < 0:
            ignored.add("priority")
        if body.stream_options is not None:
            for name in _STREAM.taken(body.stream_options):
                ignored.add(f"stream_options.{name}")
        return _Understood(body, model, self._kind.jobs(body, model, request_id, ignored), ignored)

    def _document(self, answer: Answer[Body], gatherings: list[Gathering]) -> Iterator[bytes]:
        document = self._kind.document(answer, [each.whole() for each in gatherings])
        if answer.num_tokens <= _FEW_TOKENS and document.choices[0].logprobs is None:
            return iter((msgspec.json.encode(document),))
        return encode_in_parts(document)


def answer_headers(run: Run) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell a client how its limits stand, and what it is not promised."""
    headers = ratelimit_headers(run.standing)
    if run.is_degraded:
        headers |= DEGRADED
    if not run.is_promised:
        headers |= _UNPROMISED
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
