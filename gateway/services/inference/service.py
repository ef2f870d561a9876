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
from typing import Any, Final
from uuid import UUID

from engine.contract import EngineInfo, SamplingParams
from engine.errors import ChatTemplateError
from engine.text import InvalidText
from gateway.domain import Principal, TenantSlo, Tier
from gateway.domain.price import Price
from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    Overloaded,
    TenantLimited,
)
from gateway.services.fair_pool import FairPool
from gateway.services.inference.cache_salt import cache_salt
from gateway.services.inference.chat_text import Message, chat_text, num_chars
from gateway.services.inference.embedding import Embedding
from gateway.services.inference.embedding_inputs import (
    EmbeddingJob,
    PreparedEmbedding,
    prepare_embedding,
)
from gateway.services.inference.generation import Computing, Echo, Generation
from gateway.services.inference.models import ServedModel
from gateway.services.inference.token_ids import MAX_CHARS_PER_TOKEN, checked_ids
from scheduler.errors import Rejected
from scheduler.request import Band, RejectCode, Request, Slo
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
    `adds_special_tokens` None is the tokenizer's for a text and the template's for a chat. `salt`
    narrows prefix sharing inside the tenant.
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


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Say of a request that it is an item of a batch, at which price, and when the window ends.

    `expires_at_s` is in seconds since 1970.
    """

    price: Price | None
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """Hold a job whose prompt is tokens and whose bounds fit the model."""

    job: Job
    prompt: array[int]
    params: SamplingParams
    echo: Echo | None = None

    @property
    def num_tokens(self) -> int:
        """Count the prompt's tokens."""
        return len(self.prompt)

    @property
    def max_tokens(self) -> int:
        """Say how many tokens may be drawn."""
        return self.params.max_tokens


class InferenceService:
    """Start generations on behalf of principals: `prepare` each job, then `submit` it."""

    def __init__(
        self,
        *,
        salt_key: bytes,
        pool: FairPool,
        clock: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._wall_s = wall_s
        self._salt_key = salt_key
        self.pool = pool
        self._clock = clock

    async def prepare(
        self,
        tenant_id: UUID,
        model: ServedModel,
        jobs: Sequence[Job],
        *,
        choices_per_prompt: int = 1,
    ) -> list[Prepared]:
        """Tokenise and check; of each `choices_per_prompt` jobs the prompt is the same.

        Raises: `ContextLengthExceeded`, `InvalidRequest`; `TenantLimited`, `Overloaded`: too much
        waits to be tokenised.
        """
        prepared = []
        for first in range(0, len(jobs), choices_per_prompt):
            if first:
                # Many prompts are checked one by one, and others have their turn in between.
                await asyncio.sleep(0)
            prompt = await self._tokenise(tenant_id, model, jobs[first])
            for job in jobs[first : first + choices_per_prompt]:
                params = _fit_context(model, job, len(prompt))
                echo = await self._echo(tenant_id, model, job, prompt) if job.echo else None
                prepared.append(Prepared(job, prompt, params, echo))
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
        stream = hand_over(job.request_id, prompt, params, granted_tokens)
        return Generation(
            model.service,
            stream,
            model.tokenizer.detokenizer(),
            job.stop,
            num_prompt_tokens=len(prompt),
            min_tokens=params.min_tokens,
            echo=prepared.echo,
            waits_for_prompt_logprobs=params.prompt_logprobs is not None,
            is_prompt_alone=job.is_prompt_alone,
        )

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
        request = Request(
            request_id=request_id,
            tenant_id=str(principal.tenant_id),
            key_id=str(principal.key_id),
            weight=principal.weight,
            organisation_id="" if principal.org_id is None else str(principal.org_id),
            organisation_weight=principal.org_weight,
            band=_BANDS[tier] if batch is None else Band.BATCH,
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

    async def _tokenise(self, tenant_id: UUID, model: ServedModel, job: Job) -> array[int]:
        if isinstance(job.prompt, array):
            return checked_ids(job.prompt, model.info.vocab_size, job.prompt_param)
        try:
            if _is_short(job.prompt):
                return _encode(model, job)
            encode = partial(_encode, model, job)
            return await self.pool.run(tenant_id, encode, size_bytes=_num_chars(job.prompt))
        except (ChatTemplateError, InvalidText) as exc:
            raise InvalidRequest(str(exc), param=job.prompt_param) from None

    async def _echo(
        self, tenant_id: UUID, model: ServedModel, job: Job, prompt: array[int]
    ) -> Echo:
        if isinstance(job.prompt, str):
            return Echo(job.prompt, prompt)
        decode = partial(model.tokenizer.decode, prompt)
        if len(prompt) <= _SHORT_PROMPT:
            return Echo(decode(), prompt)
        return Echo(await self.pool.run(tenant_id, decode), prompt)


def served_tier(principal: Principal, requested: Tier | None) -> Tier:
    """Return the tier that a request gets: what it asks for, capped by its key; None asks for
    the key's best.
    """
    return principal.max_tier if requested is None else requested.capped(principal.max_tier)


def _slo(slo: TenantSlo) -> Slo:
    return Slo(_seconds(slo.ttft_ms), _seconds(slo.tpot_ms), _seconds(slo.max_gap_ms))


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _is_short(prompt: Sequence[Message] | str) -> bool:
    """Tell whether a prompt is not worth a thread."""
    if isinstance(prompt, str):
        return len(prompt) <= _SHORT_CHARS
    if len(prompt) * _CHARS_A_MESSAGE > _SHORT_CHARS:
        return False
    return _num_chars(prompt) + len(prompt) * _CHARS_A_MESSAGE <= _SHORT_CHARS


def _num_chars(prompt: Sequence[Message] | str) -> int:
    return len(prompt) if isinstance(prompt, str) else num_chars(prompt)


def _encode(model: ServedModel, job: Job) -> array[int]:
    """Turn text or messages into token ids."""
    limit = model.info.max_model_len * MAX_CHARS_PER_TOKEN
    if isinstance(job.prompt, str):
        _check_length(len(job.prompt), limit, model, job.prompt_param)
        adds = job.adds_special_tokens is not False
        return model.tokenizer.encode(job.prompt, add_special_tokens=adds)
    assert not isinstance(job.prompt, array)
    _check_length(_num_chars(job.prompt), limit, model, job.prompt_param)
    text = chat_text(model, job.prompt, variables=job.template_variables)
    return model.tokenizer.encode(text, add_special_tokens=bool(job.adds_special_tokens))


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
