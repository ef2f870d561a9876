"""Items of batches, run as their requests would be: read, checked, leased, shaped, without HTTP.

What an item takes of the event loop is counted for all batch work together, as if that were one
more tenant: whoever waits for an answer waits no longer for many batches than for one neighbour.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from gateway.api.body import ClientGone
from gateway.api.errors import classify, refusal
from gateway.api.held_bytes import GrowingRoom, HeldBytes
from gateway.api.openai.answer import Gathering, gather_answer
from gateway.api.openai.chunks import Envelope
from gateway.api.openai.endpoint import wants_usage
from gateway.api.openai.kinds import (
    Answer,
    AnswerKind,
    Understanding,
    Understood,
    shape_whole,
    take_room,
)
from gateway.api.openai.sampling import requested_tier
from gateway.domain import Tier
from gateway.domain.price import Price
from gateway.domain.timeline import Timeline
from gateway.errors import CountersUnavailable, GatewayError, InvalidRequest, Overloaded
from gateway.services.batches.worker_fates import Fate, fate_of
from gateway.services.batches.worker_ports import ItemAnswer, ItemOrder
from gateway.services.inference import BatchWork, LeasedInference, ModelRegistry, ServedModel
from gateway.services.loop_share import LoopShare
from gateway.services.quotas import QuotaService
from gateway.services.quotas.bill import Meta
from gateway.services.requests import EndedRequests
from gateway.telemetry import names

# Whose account of the event loop all batch work is on.
_ALL_BATCHES: Final = UUID(int=0)
# A result is written to the journal in one go, on the event loop: more would hold up everybody.
MAX_ANSWER_BYTES: Final = 4 << 20


class ItemRunner:
    """Implement `RunsItems` over the endpoints that batches may name, by their paths."""

    def __init__(
        self,
        kinds: Mapping[str, AnswerKind[Any]],
        models: ModelRegistry,
        inference: LeasedInference,
        quotas: QuotaService,
        answers: HeldBytes,
        loop_share: LoopShare,
        ended: EndedRequests | None = None,
    ) -> None:
        self._inference = inference
        self._quotas = quotas
        self._answers = answers
        self._loop_share = loop_share
        self._ended = ended
        self._endpoints = {
            path: (kind, Understanding(kind, models, inference.pool))
            for path, kind in kinds.items()
        }

    async def run(self, order: ItemOrder) -> ItemAnswer:
        account = self._loop_share.of(_ALL_BATCHES)
        timeline = _timeline(order)
        try:
            await account.turn()
            answer: ItemAnswer = await account.charged(self._run(order, timeline))
        except BaseException as exc:
            if isinstance(exc, GatewayError):
                timeline.failed(exc.code, exc.limit)
                timeline.status, _ = classify(exc)
            self._tell(timeline)
            raise
        timeline.status = answer.status

        def drop() -> None:
            # The last that is done with an answer, kept or not.
            answer.drop()
            self._tell(timeline)

        return replace(answer, drop=drop)

    def _tell(self, timeline: Timeline) -> None:
        timeline.end(time.monotonic())
        if self._ended is not None:
            self._ended.tell(timeline)

    def refuse(self, order: ItemOrder, error: GatewayError) -> ItemAnswer:
        principal = order.principal
        meta = Meta(
            principal.organisation_id,
            principal.tenant_id,
            principal.key_id,
            order.model,
            _tier(order),
            None,
            True,
        )
        keep = partial(self._quotas.note_unbilled, order.request_id, meta)
        status, body = refusal(error, order.endpoint, order.request_id.hex)
        return ItemAnswer(status, body, True, 0, keep, lambda: None)

    async def _run(self, order: ItemOrder, timeline: Timeline) -> ItemAnswer:
        kind, understanding = self._endpoints[order.endpoint]
        request_id, principal = order.request_id.hex, order.principal
        timeline.enter(names.VALIDATE, time.monotonic())
        understood = await understanding.understand(principal, order.parts, request_id)
        order.parts.clear()
        order.model = understood.model.name
        _check(understood)
        room = self._answers.growing_room(principal.tenant_id, is_batch=True)
        with room:
            take_room(understood, room)
            return await self._answer(order, kind, understood, room, timeline)

    async def _answer(
        self,
        order: ItemOrder,
        kind: AnswerKind[Any],
        understood: Understood[Any],
        room: GrowingRoom,
        timeline: Timeline,
    ) -> ItemAnswer:
        body, model = understood.body, understood.model
        request_id, tier = order.request_id.hex, _tier(order)
        run = await self._inference.start(
            order.principal,
            model,
            understood.jobs,
            tier,
            request_id=request_id,
            choices_per_prompt=body.n or 1,
            batch=BatchWork(self._price(order, model, body.model), order.expires_at_s),
            timeline=timeline,
        )
        try:
            order.begun()
            answer_id = f"{kind.id_prefix}{request_id}"
            envelope = Envelope(answer_id, int(time.time()), model.name, model.fingerprint, tier)
            answer = Answer(body, model, run, envelope, is_batch=True)
            return await self._whole(order, kind, answer, room)
        except ClientGone:
            run.close()
            raise Overloaded("The item's run was ended.", retry_after_s=1) from None
        except GatewayError as exc:
            if fate_of(exc) is not Fate.ANSWER:
                run.close()
                raise
            # What it has computed until then is paid for, as it is of a request.
            status, shaped = refusal(exc, order.endpoint, request_id)
            timeline.failed(exc.code, exc.limit)
            run.abort()
            return ItemAnswer(status, shaped, True, 0, run.refuse, run.close)
        except BaseException:
            run.close()
            raise

    async def _whole(
        self, order: ItemOrder, kind: AnswerKind[Any], answer: Answer[Any], room: GrowingRoom
    ) -> ItemAnswer:
        """Gather an answer. Raises: `CountersUnavailable`: it could not be billed any more."""
        run, tenant_id = answer.run, order.principal.tenant_id
        gatherings = [Gathering() for _ in run.generations]
        await gather_answer(run, gatherings, room)
        pool = self._inference.pool
        parts = await shape_whole(kind, answer, gatherings, pool, room, tenant_id)
        size_bytes = sum(map(len, parts))
        if size_bytes > MAX_ANSWER_BYTES:
            raise InvalidRequest(
                f"The answer has {size_bytes} bytes; one of a batch may have {MAX_ANSWER_BYTES}. "
                "Ask for fewer choices or log-probabilities.",
                code="answer_too_large",
            )
        if not run.is_covered:
            raise CountersUnavailable(detail=f"{run} outlived its lease", retry_after_s=1)
        usage = answer.usage()
        return ItemAnswer(200, b"".join(parts), False, _cost(usage), run.complete, run.close)

    def _price(self, order: ItemOrder, model: ServedModel, asked: str) -> Price | None:
        """Return the price that held as the batch was made, else what holds now."""
        for name in (asked, model.name):
            if name in order.prices:
                return order.prices[name]
        return self._quotas.price(model.name)


def _timeline(order: ItemOrder) -> Timeline:
    principal, began_s = order.principal, time.monotonic()
    timeline = Timeline(
        order.request_id.hex,
        began_s,
        time.time_ns(),
        route=order.endpoint,
        tenant_id=principal.tenant_id,
        organisation_id=principal.organisation_id,
        key_id=principal.key_id,
        batch_id=order.batch_id,
        attempt=order.attempt,
        previous_id=order.previous_id,
        trace_id=order.request_id.int,
    )
    timeline.enter(names.TURN, began_s)
    return timeline


def _check(understood: Understood[Any]) -> None:
    """Check what an item may not ask for, though a request may. Raises: `InvalidRequest`."""
    if understood.body.stream:
        raise InvalidRequest(
            "An item of a batch cannot be streamed; leave 'stream' out.",
            param="stream",
            code="streaming_unsupported",
        )
    wants_usage(understood.body)
    # It has no say here, but a tier that does not exist is refused all the same.
    requested_tier(understood.body)


def _tier(order: ItemOrder) -> Tier:
    return Tier.DEFAULT.capped(order.principal.max_tier)


def _cost(usage: Any) -> int:
    return int(usage.prompt_tokens + usage.completion_tokens)
