"""`POST /v1/responses`: an inference endpoint that recalls what came before and stores what came.

A chain is read before anything is computed; an answer is stored when it is whole and before its
end is sent, so that who has seen the end can go on from it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.types import Scope, Send

from gateway.api.body import SHORT_BODY_BYTES
from gateway.api.held_bytes import GrowingRoom, HeldBytes, Room
from gateway.api.json_parts import gathered
from gateway.api.openai.answer import (
    Gathering,
    collect_answer,
    send_document,
    stream_answer,
)
from gateway.api.openai.endpoint import InferenceEndpoint
from gateway.api.openai.kinds import Answer, Understanding, Understood
from gateway.api.openai.reading import Ignored
from gateway.api.responses.ids import read_response_id
from gateway.api.responses.input_items import Item
from gateway.api.responses.responses import Responses
from gateway.api.responses.schemas import ResponseObject, ResponsesRequest
from gateway.api.responses.shaped import without_logprobs
from gateway.api.write_now import WRITE_NOW
from gateway.domain import Principal
from gateway.domain.stored_response import NO_CHAIN, Chain
from gateway.domain.timeline import Timeline
from gateway.services.health import OverloadWatch
from gateway.services.inference import Job, LeasedInference, ModelRegistry, ServedModel
from gateway.services.responses import StoredResponses
from gateway.telemetry import names

# What is encoded where it stands; more, on a thread.
_FEW_TOKENS: Final = 1 << 14
_FEW_HELD_BYTES: Final = 16 << 10
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Named(msgspec.Struct):
    """Find in a body what it goes on from, before the rest of it is looked at."""

    previous_response_id: str | None = None


_named: Final = msgspec.json.Decoder(_Named)


class Recalled(Responses):
    """Shape one response, which goes on from a chain; `kept` is what was sent with it."""

    def __init__(self, kind: Responses, chain: Chain) -> None:
        self.reader, self.stores = kind.reader, kind.stores
        self.chain = chain
        self.kept: list[Item] = []

    def jobs(
        self, body: ResponsesRequest, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job]:
        self.kept = self.sent(body, request_id, ignored)
        job = self.job(body, model, self.kept, request_id, ignored, self.chain)
        # They are turns by now, and may be many.
        self.chain = replace(self.chain, items=())
        return [job]


class ResponsesEndpoint(InferenceEndpoint[ResponsesRequest]):
    """Serve responses; without `stored` none is stored."""

    def __init__(
        self,
        kind: Responses,
        models: ModelRegistry,
        inference: LeasedInference,
        overload: OverloadWatch,
        bodies: HeldBytes,
        answers: HeldBytes,
        stored: StoredResponses | None = None,
        *,
        stores_unasked: bool = True,
    ) -> None:
        super().__init__(kind, models, inference, overload, bodies, answers)
        self._responses = kind
        self._models = models
        self._stored = stored
        self._stores_unasked = stores_unasked

    async def _understand(
        self, state: dict[str, Any], parts: list[bytes], room: Room
    ) -> Understood[ResponsesRequest]:
        principal: Principal = state["principal"]
        chain, previous = NO_CHAIN, None
        if self._stored is not None:
            previous = await self._previous(principal.tenant_id, parts)
        if previous is not None and self._stored is not None:
            timeline: Timeline = state["timeline"]
            timeline.enter(names.RECALL, time.monotonic())
            previous_id = read_response_id(
                previous, param="previous_response_id", code="previous_response_not_found"
            )
            chain = await self._stored.chain(principal.tenant_id, previous_id, room.grow)
            timeline.enter(names.VALIDATE, time.monotonic())
        recalled = state["recalled"] = Recalled(self._responses, chain)
        understanding = Understanding(recalled, self._models, self._inference.pool)
        understood = await understanding.understand(
            principal, parts, state["request_id"], beside_bytes=chain.num_bytes
        )
        if understood.body.store and self._stored is not None:
            self._stored.require()
        return understood

    async def _previous(self, tenant_id: UUID, parts: list[bytes]) -> str | None:
        """Return what a body goes on from, looked for on a thread where that takes long."""
        size_bytes = sum(map(len, parts))
        if size_bytes <= SHORT_BODY_BYTES:
            return _previous(parts)
        find = partial(_previous, parts)
        return await self._inference.pool.run(tenant_id, find, size_bytes=size_bytes)

    async def _stream(
        self,
        scope: Scope,
        send: Send,
        answer: Answer[ResponsesRequest],
        *,
        include_usage: bool,
    ) -> None:
        tenant_id = scope["state"]["principal"].tenant_id
        with self._answers.room(tenant_id) as room:
            events = self._responses.chunks(answer, room=room)

            async def keep() -> None:
                events.is_stored = await self._keep(scope, answer, events.whole())

            await stream_answer(
                send,
                answer.run,
                events,
                None,
                self._shape(scope),
                before_end=keep,
                now=scope["state"].get(WRITE_NOW),
            )

    async def _send_whole(
        self, scope: Scope, send: Send, answer: Answer[ResponsesRequest], room: GrowingRoom
    ) -> None:
        gathering = Gathering()
        await collect_answer(answer.run, [gathering], room)
        is_long = room.num_bytes > _FEW_HELD_BYTES or answer.num_tokens > _FEW_TOKENS
        pool, tenant_id = self._inference.pool, scope["state"]["principal"].tenant_id

        def document() -> ResponseObject:
            return self._responses.document(answer, [gathering.whole()])

        response = await pool.run(tenant_id, document) if is_long else document()
        response.store = await self._keep(scope, answer, response)
        encode = partial(msgspec.json.encode, response)
        body = await pool.run(tenant_id, encode) if is_long else encode()
        await send_document(send, [*gathered([body])])

    async def _keep(
        self, scope: Scope, answer: Answer[ResponsesRequest], response: ResponseObject
    ) -> bool:
        """Store a response that is asked to be; tell whether it is."""
        asked = answer.body.store
        if self._stored is None or not (self._stores_unasked if asked is None else asked):
            return False
        state = scope["state"]
        timeline: Timeline = state["timeline"]
        timeline.enter(names.STORE, time.monotonic())
        recalled: Recalled = state["recalled"]
        output = without_logprobs(response.output)
        whole = msgspec.structs.replace(response, output=output, store=True)
        is_stored = await self._stored.keep(
            state["principal"].tenant_id,
            UUID(hex=state["request_id"]),
            recalled.chain,
            recalled.kept,
            whole,
        )
        timeline.enter(names.SEND, time.monotonic())
        return is_stored


def _previous(parts: list[bytes]) -> str | None:
    """Return what a body goes on from; whoever reads it whole says what is wrong with it."""
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    # A name may be spelled with escapes.
    if b"previous_response_id" not in body and b"\\u" not in body:
        return None
    try:
        return _named.decode(body).previous_response_id
    except _UNREADABLE:
        return None
