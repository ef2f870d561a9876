"""From a principal's prompt to text: tokenise, check, submit, and turn tokens back into text.

Every refusal is raised before anything is computed, so a caller can still answer with a status.
`submit` returns a `Generation`, which owns the request's place in the scheduler.

Threads: everything runs on the event loop but the rendering and tokenisation of what is not short,
which goes to a pool that is fair between tenants, because a long prompt takes milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from engine.contract import EngineInfo, SamplingParams, TokenConstraint
from engine.errors import ChatTemplateError
from engine.text import Detokenizer, InvalidText
from gateway.domain import Principal, TenantSlo, Tier
from gateway.domain.price import Price
from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    Overloaded,
    TenantLimited,
    UnsupportedParameter,
)
from gateway.services.answers import TAIL_CHARS, Reading
from gateway.services.constraints import Constraints, ConstraintSpec
from gateway.services.fair_pool import FairPool
from gateway.services.inference.cache_salt import cache_salt
from gateway.services.inference.chat_text import Message, chat_text, num_chars
from gateway.services.inference.embedding import Embedding
from gateway.services.inference.embedding_inputs import (
    EmbeddingJob,
    PreparedEmbedding,
    prepare_embedding,
)
from gateway.services.inference.forced_calls import after_thinking
from gateway.services.inference.generation import Computing, Echo, Generation
from gateway.services.inference.models import ServedModel
from gateway.services.inference.token_ids import MAX_CHARS_PER_TOKEN, checked_ids
from scheduler.errors import Rejected
from scheduler.request import Band, RejectCode, Request, Sender, Slo
from scheduler.stream import TokenStream

# So much is tokenised where it stands: handing it to a thread and back takes 100 µs of CPU, these
# take 70. A message counts for some more, as each is rendered.
_SHORT_CHARS: Final = 512
_CHARS_A_MESSAGE: Final = 32
# And so many tokens are made text again.
_SHORT_PROMPT: Final = 256

_BANDS: Final = {
    Tier.PRIORITY: Band.PRIORITY,
    Tier.DEFAULT: Band.DEFAULT,
    Tier.FLEX: Band.FLEX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Say what to generate: from chat messages, a text, or token ids.

    `params.max_tokens` is refused if it does not fit the context; with `clip_max_tokens` (the
    client set no bound) it is lowered to what fits. With `echo` the text begins with the prompt;
    with `is_prompt_alone` it is nothing else, and the one token of `max_tokens` is dropped.
    With a `constraint` it is of that form.
    `adds_special_tokens` None is the tokenizer's for a text and the template's for a chat. `salt`
    narrows prefix sharing inside the tenant. `tools` are given to the template, as OpenAI's objects
    of `tools_chars` in all. With `reading` the answer is read for thinking and for calls. With
    `continues` the answer goes on with the last message.
    """

    request_id: str
    prompt: Sequence[Message] | str | array[int]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    clip_max_tokens: bool = False
    prompt_param: str = "messages"
    echo: bool = False
    is_prompt_alone: bool = False
    adds_special_tokens: bool | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    salt: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tools_chars: int = 0
    reading: Reading | None = None
    constraint: ConstraintSpec | None = None
    continues: bool = False

    @property
    def num_chars(self) -> int:
        """Count what is rendered and tokenised."""
        assert not isinstance(self.prompt, array)
        if isinstance(self.prompt, str):
            return len(self.prompt)
        return num_chars(self.prompt) + self.tools_chars


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Say of a request that it is an item of a batch, at which price, and when the window ends.

    `expires_at_s` is in seconds since 1970.
    """

    price: Price | None
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """Hold a job whose prompt is tokens and whose bounds fit the model.

    `prompt_tail` is the end of a chat as text, where its answer is read.
    """

    job: Job
    prompt: array[int]
    params: SamplingParams
    echo: Echo | None = None
    prompt_tail: str = ""

    @property
    def num_tokens(self) -> int:
        """Count the prompt's tokens."""
        return len(self.prompt)

    @property
    def max_tokens(self) -> int:
        """Say how many tokens may be drawn."""
        return self.params.max_tokens


class _Encoded(NamedTuple):
    ids: array[int]
    tail: str = ""


class InferenceService:
    """Start generations on behalf of principals: `prepare` each job, then `submit` it."""

    def __init__(
        self,
        *,
        salt_key: bytes,
        pool: FairPool,
        constraints: Constraints | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._wall_s = wall_s
        self._salt_key = salt_key
        self.pool = pool
        self._constraints = constraints
        self._clock = clock

    async def prepare(
        self,
        tenant_id: UUID,
        model: ServedModel,
        jobs: Sequence[Job],
        *,
        choices_per_prompt: int = 1,
    ) -> list[Prepared]:
        """Tokenise, compile and check; of each `choices_per_prompt` jobs prompt and constraint are
        the same.

        Raises: `ContextLengthExceeded`, `InvalidRequest`; `TenantLimited`, `Overloaded`: too much
        waits to be tokenised or compiled.
        """
        prepared = []
        for first in range(0, len(jobs), choices_per_prompt):
            if first:
                # Many prompts are checked one by one, and others have their turn in between.
                await asyncio.sleep(0)
            prompt, tail = await self._tokenise(tenant_id, model, jobs[first])
            constraint = await self._compile(tenant_id, model, jobs[first], tail)
            for job in jobs[first : first + choices_per_prompt]:
                params = _fit_context(model, job, len(prompt))
                if constraint is not None:
                    params = replace(params, constraint=constraint)
                echo = await self._echo(tenant_id, model, job, prompt) if job.echo else None
                prepared.append(Prepared(job, prompt, params, echo, tail))
        return prepared

    def submit(
        self,
        principal: Principal,
        model: ServedModel,
        prepared: Prepared | PreparedEmbedding,
        tier: Tier,
        *,
        granted_tokens: int | None = None,
        batch: BatchWork | None = None,
    ) -> Computing:
        """Hand a job to the scheduler. `tier` is what the principal may have (`served_tier`).

        An item of a batch is promised nothing and fills what others leave. It pauses at
        `granted_tokens` until it is extended. Raises: `ContextLengthExceeded`, `TenantLimited`,
        `Overloaded`.
        """
        hand_over = partial(self._hand_over, principal, model, tier, batch, prepared.job.salt)
        if isinstance(prepared, PreparedEmbedding):
            return Embedding(model.service, hand_over, prepared)
        job, prompt, params = prepared.job, prepared.prompt, prepared.params
        reading = job.reading
        stream = hand_over(job.request_id, prompt, params, granted_tokens)
        return Generation(
            model.service,
            stream,
            _detokenizer(model, job.reading),
            job.stop,
            num_prompt_tokens=len(prompt),
            min_tokens=params.min_tokens,
            echo=prepared.echo,
            waits_for_prompt_logprobs=params.prompt_logprobs is not None,
            is_prompt_alone=job.is_prompt_alone,
            reader=reading.reader(prepared.prompt_tail, job.stop) if reading else None,
        )

    def check_room(
        self,
        principal: Principal,
        model: ServedModel,
        tier: Tier,
        *,
        num_requests: int,
        num_prompt_tokens: int,
    ) -> None:
        """Refuse what `submit` would not take as a whole, before any of it is handed over.

        Raises: `TenantLimited`, `Overloaded`.
        """
        try:
            model.service.check_room(sender_of(principal, tier), num_requests, num_prompt_tokens)
        except Rejected as exc:
            raise _refusal(exc) from None

    def _hand_over(
        self,
        principal: Principal,
        model: ServedModel,
        tier: Tier,
        batch: BatchWork | None,
        salt: str | None,
        request_id: str,
        prompt: array[int],
        params: SamplingParams,
        granted_tokens: int | None,
    ) -> TokenStream:
        now = self._clock()
        sender = sender_of(principal, tier)
        request = Request(
            request_id=request_id,
            tenant_id=sender.tenant_id,
            key_id=str(principal.key_id),
            weight=sender.weight,
            organisation_id=sender.organisation_id,
            organisation_weight=sender.organisation_weight,
            band=sender.band if batch is None else Band.BATCH,
            slo=_slo(principal.slo) if batch is None else Slo(),
            prompt_token_ids=prompt,
            params=params,
            cache_salt=cache_salt(
                self._salt_key,
                model=model.name,
                tenant_id=str(principal.tenant_id),
                narrowed_by=salt,
            ),
            arrival_s=now,
            granted_tokens=granted_tokens,
            finish_by_s=None if batch is None else now + batch.expires_at_s - self._wall_s(),
        )
        try:
            return model.service.submit(request)
        except Rejected as exc:
            raise _refusal(exc) from None

    async def prepare_embedding(
        self, tenant_id: UUID, model: ServedModel, job: EmbeddingJob
    ) -> PreparedEmbedding:
        """Tokenise and check all inputs. Raises: as `prepare`."""
        return await prepare_embedding(self.pool, tenant_id, model, job)

    async def _tokenise(self, tenant_id: UUID, model: ServedModel, job: Job) -> _Encoded:
        if isinstance(job.prompt, array):
            return _Encoded(checked_ids(job.prompt, model.info.vocab_size, job.prompt_param))
        try:
            if _is_short(job):
                return _encode(model, job)
            encode = partial(_encode, model, job)
            return await self.pool.run(tenant_id, encode, size_bytes=job.num_chars)
        except (ChatTemplateError, InvalidText) as exc:
            raise InvalidRequest(str(exc), param=job.prompt_param) from None

    async def _compile(
        self, tenant_id: UUID, model: ServedModel, job: Job, prompt_tail: str
    ) -> TokenConstraint | None:
        if job.constraint is None:
            return None
        spec = job.constraint
        if job.reading is not None and job.reading.format.thinks:
            spec = after_thinking(spec, model.tokenizer, prompt_tail)
        if self._constraints is None:
            raise UnsupportedParameter(
                f"This server cannot do what '{job.constraint.param}' asks.",
                param=job.constraint.param,
            )
        return await self._constraints.compile(tenant_id, model.tokenizer, model.info, spec)

    async def _echo(
        self, tenant_id: UUID, model: ServedModel, job: Job, prompt: array[int]
    ) -> Echo:
        if isinstance(job.prompt, str):
            return Echo(job.prompt, prompt)
        decode = partial(model.tokenizer.decode, prompt)
        if len(prompt) <= _SHORT_PROMPT:
            return Echo(decode(), prompt)
        return Echo(await self.pool.run(tenant_id, decode), prompt)


def sender_of(principal: Principal, tier: Tier) -> Sender:
    """Name who sends a request of a tier as schedulers do."""
    return Sender(
        tenant_id=str(principal.tenant_id),
        weight=principal.weight,
        organisation_id="" if principal.org_id is None else str(principal.org_id),
        organisation_weight=principal.org_weight,
        band=_BANDS[tier],
    )


def served_tier(principal: Principal, requested: Tier | None) -> Tier:
    """Return the tier that a request gets: what it asks for, capped by its key; None asks for
    the key's best.
    """
    return principal.max_tier if requested is None else requested.capped(principal.max_tier)


def _slo(slo: TenantSlo) -> Slo:
    return Slo(_seconds(slo.ttft_ms), _seconds(slo.tpot_ms), _seconds(slo.max_gap_ms))


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _detokenizer(model: ServedModel, reading: Reading | None) -> Detokenizer:
    if reading is None:
        return model.tokenizer.detokenizer()
    return model.tokenizer.detokenizer(spelled=reading.spelled)


def _is_short(job: Job) -> bool:
    """Tell whether a prompt is not worth a thread."""
    num_messages = 0 if isinstance(job.prompt, str) else len(job.prompt)
    if num_messages * _CHARS_A_MESSAGE > _SHORT_CHARS:
        return False
    return job.num_chars + num_messages * _CHARS_A_MESSAGE <= _SHORT_CHARS


def prompt_tokens(model: ServedModel, job: Job) -> array[int]:
    """Turn a job's text or messages into token ids: as many as are billed for them.

    Call it on a thread where that is not short. Raises: `InvalidRequest`, and its subclass
    `ContextLengthExceeded`; `engine.errors.ChatTemplateError`, `engine.text.InvalidText`.
    """
    return _encode(model, job).ids


def _encode(model: ServedModel, job: Job) -> _Encoded:
    limit = model.info.max_model_len * MAX_CHARS_PER_TOKEN
    _check_length(job.num_chars, limit, model, job.prompt_param)
    if isinstance(job.prompt, str):
        adds = job.adds_special_tokens is not False
        return _Encoded(model.tokenizer.encode(job.prompt, add_special_tokens=adds))
    assert not isinstance(job.prompt, array)
    text = chat_text(
        model,
        job.prompt,
        variables=job.template_variables,
        tools=job.tools,
        add_generation_prompt=not job.continues,
        continue_final_message=job.continues,
    )
    ids = model.tokenizer.encode(text, add_special_tokens=bool(job.adds_special_tokens))
    return _Encoded(ids, text[-TAIL_CHARS:])


def _check_length(num_chars: int, limit: int, model: ServedModel, param: str) -> None:
    if num_chars > limit:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {model.info.max_model_len} tokens. However, "
            f"your prompt has {num_chars} characters: the prompt is too long.",
            param=param,
        )


def check_prompt_length(num_tokens: int, info: EngineInfo, param: str) -> None:
    """Raise `ContextLengthExceeded` where a prompt is longer than the context."""
    if num_tokens > info.max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {info.max_model_len} tokens. However, "
            f"your prompt has {num_tokens} tokens: the prompt is too long.",
            param=param,
        )


def _fit_context(model: ServedModel, job: Job, num_prompt_tokens: int) -> SamplingParams:
    """Return the parameters with a `max_tokens` that fits the context."""
    context = model.info.max_model_len
    if num_prompt_tokens == 0:
        raise InvalidRequest("The prompt is empty.", param=job.prompt_param)
    room = context - num_prompt_tokens
    wanted = job.params.max_tokens
    if job.clip_max_tokens and room >= 1:
        wanted = min(wanted, room)
    if wanted > room and job.is_prompt_alone:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens. However, your prompt has "
            f"{num_prompt_tokens} tokens, and to compute it takes room for one more, though none "
            "is returned: the prompt is too long.",
            param=job.prompt_param,
        )
    if wanted > room:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{num_prompt_tokens + wanted} tokens ({num_prompt_tokens} in the "
            f"{job.prompt_param.partition('[')[0]}, {wanted} in the completion). Please reduce "
            f"the length of the {job.prompt_param.partition('[')[0]} or completion.",
            param=job.prompt_param,
        )
    return job.params if wanted == job.params.max_tokens else replace(job.params, max_tokens=wanted)


def _refusal(exc: Rejected) -> GatewayError:
    """Say a scheduler's rejection in the gateway's words: ours to mend, or the tenant's."""
    if exc.code is RejectCode.CONTEXT_LENGTH_EXCEEDED:
        return ContextLengthExceeded(exc.reason)
    if exc.code is RejectCode.TENANT_LIMITED:
        return TenantLimited(exc.reason, retry_after_s=exc.retry_after_s, limit="tenant.queue")
    return Overloaded(exc.reason, code=exc.code, retry_after_s=exc.retry_after_s)
