"""Start what a request asks for under its limits, and bill it however it ends.

The prompt is tokenised first, so that what is reserved for it is exact; then all of its
generations are handed to the scheduler, or none and nothing is charged. A `Run` must be closed on
every path; all of its methods are synchronous, so that nothing can come between.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from uuid import UUID

from gateway.domain import Principal, Tier
from gateway.domain.batch import ItemResult
from gateway.domain.quota import Standing
from gateway.domain.timeline import Content, Timeline
from gateway.domain.usage import Outcome
from gateway.errors import AnswersSaturated, GatewayError, InternalFailure
from gateway.services.inference.chat_text import Message
from gateway.services.inference.embedding_inputs import EmbeddingJob, PreparedEmbedding
from gateway.services.inference.generation import Computing, Piece
from gateway.services.inference.models import ServedModel
from gateway.services.inference.service import BatchWork, InferenceService, Job, Prepared
from gateway.services.quotas import Entry, QuotaService, RequestLease, Terms
from gateway.telemetry import names
from scheduler.request import FinishReason


class Run:
    """Hold what computes for a request, and the lease that pays for it."""

    def __init__(
        self,
        generations: Sequence[Computing],
        lease: RequestLease,
        timeline: Timeline | None = None,
    ) -> None:
        self.generations = generations
        self._lease = lease
        self._timeline = timeline

    @property
    def standing(self) -> Standing | None:
        """Say how the tightest limits stand."""
        return self._lease.standing

    @property
    def is_degraded(self) -> bool:
        """Tell whether limits were checked by this process alone."""
        return self._lease.is_local

    @property
    def is_promised(self) -> bool:
        """Tell whether what its tenant is promised holds for all of it."""
        return all(generation.is_promised for generation in self.generations)

    def stop_cause_of(self, index: int, piece: Piece) -> str | None:
        """Say what ended a generation short of its own bounds; None: nothing did."""
        if piece.finish_reason != FinishReason.LENGTH:
            return None
        return self._lease.stop_causes.get(index)

    @property
    def is_covered(self) -> bool:
        """Tell whether all that it has used can be billed."""
        return self._lease.is_covered

    def complete(self, item: ItemResult | None = None) -> None:
        """Bill the whole answer; call this before its last byte is sent."""
        self._settle(Outcome.COMPLETED, item)

    def refuse(self, item: ItemResult) -> None:
        """Bill what a batch's item has used that is answered with an error of its own."""
        self.abort()
        self._settle(Outcome.CANCELLED, item)

    def fail(self, error: GatewayError) -> None:
        """Bill what came before an error that is not ours, nor for room that others take."""
        if self._timeline is not None:
            self._timeline.failed(error.code, error.limit)
        is_ours = isinstance(error, InternalFailure | AnswersSaturated)
        self._end(Outcome.FAILED if is_ours else Outcome.CANCELLED)

    def close(self) -> None:
        """Free what still computes, and bill it if nobody has."""
        self._end(Outcome.CANCELLED)

    def abort(self) -> None:
        """Free what still computes."""
        for generation in self.generations:
            generation.close()

    def _end(self, outcome: Outcome) -> None:
        # First, as it tells how far each has come.
        self.abort()
        # Nobody may have been left to read of a fault.
        has_failed = any(generation.has_failed for generation in self.generations)
        self._settle(Outcome.FAILED if has_failed else outcome)

    def _settle(self, outcome: Outcome, item: ItemResult | None = None) -> None:
        timeline = self._timeline
        # With what the lease knows of them they are a circle, and there is no more to be told.
        for generation in self.generations:
            generation.on_output = None
        if timeline is None or self._lease.is_settled:
            self._lease.settle(outcome, item)
            return
        timeline.enter(names.SETTLE, time.monotonic())
        self._lease.settle(outcome, item)
        timeline.finish_reasons = tuple(one.ended_by or "" for one in self.generations)
        timeline.note(names.OUTCOME, timeline.outcome)
        timeline.enter(names.SEND, time.monotonic())


class LeasedInference:
    """Start runs on behalf of principals; `entry` is where their requests come in, `pool` where
    what is large is worked on."""

    def __init__(self, inference: InferenceService, quotas: QuotaService, entry: Entry) -> None:
        self._inference = inference
        self._quotas = quotas
        self.entry = entry
        self.pool = inference.pool

    async def start(
        self,
        principal: Principal,
        model: ServedModel,
        jobs: Sequence[Job] | EmbeddingJob,
        tier: Tier,
        *,
        request_id: str,
        choices_per_prompt: int,
        is_counted: bool = False,
        batch: BatchWork | None = None,
        timeline: Timeline | None = None,
    ) -> Run:
        """Start all of a request's jobs; the first of each `choices_per_prompt` leads a prompt.

        With `is_counted` it was counted as a request before its body was read. With `batch` it is
        an item of one. `timeline` is told what happens.
        Raises: what `prepare`, `reserve` and `submit` raise; nothing is charged then.
        """
        content = None
        if timeline is not None:
            if principal.trace_prompts:
                content = timeline.content = Content()
                content.sent(_sent(jobs, choices_per_prompt))
            timeline.model, timeline.tier = model.name, tier.value
            timeline.enter(names.TOKENIZE, time.monotonic())
        prepared: Sequence[Prepared | PreparedEmbedding]
        if isinstance(jobs, EmbeddingJob):
            prepared = [await self._inference.prepare_embedding(principal.tenant_id, model, jobs)]
        else:
            prepared = await self._inference.prepare(
                principal.tenant_id, model, jobs, choices_per_prompt=choices_per_prompt
            )
        leads = [index % choices_per_prompt == 0 for index in range(len(prepared))]
        terms = Terms(
            request_id=UUID(hex=request_id),
            principal=principal,
            model=model.name,
            tier=tier,
            price=batch.price if batch is not None else self._quotas.price(model.name),
            num_prompt_tokens=sum(job.num_tokens for job in prepared[::choices_per_prompt]),
            max_tokens=[job.max_tokens for job in prepared],
            leads=leads,
            is_counted=is_counted,
            is_batch=batch is not None,
            timeline=timeline,
        )
        if len(prepared) > 1 and batch is None:
            # To hand over a hundred and to take them back costs others as much as to serve them.
            self._inference.check_room(
                principal,
                model,
                tier,
                num_requests=len(prepared),
                num_prompt_tokens=terms.num_prompt_tokens,
            )
        lease = await self._reserve(terms)
        generations = await self._submit(principal, model, prepared, tier, lease, batch)
        lease.attach(generations)
        for index, generation in enumerate(generations):
            generation.on_output = partial(lease.note_output, index)
            if content is not None:
                generation.on_text = partial(content.answered, index)
        return Run(generations, lease, timeline)

    async def _reserve(self, terms: Terms) -> RequestLease:
        timeline = terms.timeline
        if timeline is None:
            return await self._quotas.reserve(terms)
        timeline.note(names.INPUT_TOKENS, terms.num_prompt_tokens)
        timeline.price, timeline.max_tokens = terms.price, max(terms.max_tokens)
        timeline.num_choices = len(terms.max_tokens)
        timeline.enter(names.RESERVE, time.monotonic())
        timeline.note(names.DB_SYSTEM, "redis")
        try:
            lease = await self._quotas.reserve(terms)
        except GatewayError as exc:
            timeline.note(names.QUOTA_DECISION, "refused")
            timeline.note(names.QUOTA_LIMIT, exc.limit)
            raise
        timeline.is_degraded = lease.is_local
        timeline.note(names.QUOTA_DECISION, "held")
        timeline.note(names.QUOTA_MODE, "degraded" if lease.is_local else "normal")
        timeline.note(names.QUOTA_RESERVED, lease.held.tokens)
        timeline.enter(names.CHAT, time.monotonic())
        return lease

    async def _submit(
        self,
        principal: Principal,
        model: ServedModel,
        prepared: Sequence[Prepared | PreparedEmbedding],
        tier: Tier,
        lease: RequestLease,
        batch: BatchWork | None,
    ) -> list[Computing]:
        started: list[Computing] = []
        try:
            for job, granted_tokens in zip(prepared, lease.granted, strict=True):
                if started:
                    # Each prompt is hashed; others have their turn in between.
                    await asyncio.sleep(0)
                started.append(
                    self._inference.submit(
                        principal,
                        model,
                        job,
                        tier,
                        granted_tokens=granted_tokens,
                        batch=batch,
                    )
                )
        except BaseException:
            for generation in started:
                generation.close()
            lease.refund()
            raise
        finally:
            if lease.terms.timeline is not None:
                lease.terms.timeline.generations = started
        return started


def _sent(jobs: Sequence[Job] | EmbeddingJob, choices_per_prompt: int) -> Iterator[tuple[str, str]]:
    """Say what was sent, a role and a text each; of token ids, how many."""
    if isinstance(jobs, EmbeddingJob):
        prompts: list[Sequence[Message] | str | array[int]] = [given for _, given in jobs.inputs]
    else:
        prompts = [job.prompt for job in jobs[::choices_per_prompt]]
    for prompt in prompts:
        if isinstance(prompt, str):
            yield "user", prompt
        elif isinstance(prompt, array):
            yield "user", f"({len(prompt)} token ids)"
        else:
            yield from ((message.role, message.content) for message in prompt)
