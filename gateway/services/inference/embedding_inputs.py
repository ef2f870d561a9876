"""The inputs of a request for vectors: tokenised, and checked against the model's context."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from engine.text import InvalidText, Tokenizer
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.services.fair_pool import FairPool
from gateway.services.inference.models import ServedModel
from gateway.services.inference.token_ids import MAX_CHARS_PER_TOKEN, checked_ids

# OpenAI's bounds on a request.
MAX_INPUTS: Final = 2048
MAX_TOTAL_TOKENS: Final = 300_000

# So much is tokenised where it stands, as other prompts are, and so much in one go on a thread.
_SHORT_CHARS: Final = 512
_CHARS_A_GO: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingJob:
    """Ask for the vectors of `inputs`, texts or token ids, each with its field's name.

    `truncate_to` is how many tokens are kept of what is longer, -1 as many as the model takes, and
    None refuses it. `salt` narrows prefix sharing inside the tenant.
    """

    request_id: str
    inputs: Sequence[tuple[str, str | array[int]]]
    truncate_to: int | None = None
    adds_special_tokens: bool = True
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedEmbedding:
    """Hold a job whose inputs are tokens and fit the model."""

    job: EmbeddingJob
    prompts: Sequence[array[int]]
    num_tokens: int

    @property
    def max_tokens(self) -> int:
        """Say how many tokens may be drawn."""
        return 0


async def prepare_embedding(
    pool: FairPool, tenant_id: UUID, model: ServedModel, job: EmbeddingJob
) -> PreparedEmbedding:
    """Tokenise and check the inputs, on a thread where that is not short.

    Raises: `ContextLengthExceeded`, `InvalidRequest`; what the pool raises.
    """
    prompts: list[array[int]] = []
    num_tokens = 0
    most = model.info.max_model_len - 1
    if job.truncate_to is not None and job.truncate_to > most:
        raise InvalidRequest(
            f"'truncate_prompt_tokens' must be at most {most}, the longest input of this model.",
            param="truncate_prompt_tokens",
        )
    for some in _goes(job.inputs):
        tokenise = partial(_tokenise, model, job, some)
        num_chars = sum(map(_size_of, some))
        if num_chars <= _SHORT_CHARS:
            made = tokenise()
        else:
            made = await pool.run(tenant_id, tokenise, size_bytes=num_chars)
        prompts += made
        num_tokens += sum(map(len, made))
        if num_tokens > MAX_TOTAL_TOKENS:
            raise InvalidRequest(
                f"The inputs have more than {MAX_TOTAL_TOKENS} tokens together; send fewer.",
                param="input",
                code="max_tokens_per_request",
            )
        await asyncio.sleep(0)
    return PreparedEmbedding(job, prompts, num_tokens)


def _goes(
    inputs: Sequence[tuple[str, str | array[int]]],
) -> Iterator[list[tuple[str, str | array[int]]]]:
    """Cut a list into parts that are tokenised in one go."""
    some: list[tuple[str, str | array[int]]] = []
    num_chars = 0
    for one in inputs:
        if some and num_chars + _size_of(one) > _CHARS_A_GO:
            yield some
            some, num_chars = [], 0
        some.append(one)
        num_chars += _size_of(one)
    yield some


def _size_of(one: tuple[str, str | array[int]]) -> int:
    return len(one[1])


def _tokenise(
    model: ServedModel, job: EmbeddingJob, inputs: Sequence[tuple[str, str | array[int]]]
) -> list[array[int]]:
    return [_fitted(model, job, param, one) for param, one in inputs]


def _fitted(model: ServedModel, job: EmbeddingJob, param: str, one: str | array[int]) -> array[int]:
    """Return an input's tokens, as many as may be."""
    most = model.info.max_model_len - 1
    if isinstance(one, str):
        limit = (most + 1) * MAX_CHARS_PER_TOKEN
        if len(one) > limit:
            if job.truncate_to is None:
                raise _too_long(most, f"{len(one)} characters", param)
            one = one[:limit]
        try:
            ids = model.tokenizer.encode(one, add_special_tokens=job.adds_special_tokens)
        except InvalidText as exc:
            raise InvalidRequest(str(exc), param=param) from None
    else:
        ids = checked_ids(one, model.info.vocab_size, param)
    if not ids:
        raise InvalidRequest("The input is empty.", param=param)
    if job.truncate_to is not None:
        kept = most if job.truncate_to < 0 else job.truncate_to
        return truncated(ids, kept, appended_ids(model.tokenizer))
    if len(ids) > most:
        raise _too_long(most, f"{len(ids)} tokens", param)
    return ids


def _too_long(most: int, size: str, param: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model takes inputs of up to {most} tokens. However, your input has {size}: it is "
        "too long. 'truncate_prompt_tokens' cuts what is longer.",
        param=param,
    )


def appended_ids(tokenizer: Tokenizer) -> array[int]:
    """Return the special tokens that a tokenizer puts after a text: what is pooled may be one."""
    whole = tokenizer.encode("a")
    inner = tokenizer.encode("a", add_special_tokens=False)
    for at in range(len(whole) - len(inner) + 1):
        if whole[at : at + len(inner)] == inner:
            return whole[at + len(inner) :]
    return array("i")


def truncated(ids: array[int], num_kept: int, appended: array[int]) -> array[int]:
    """Cut an input from its end, but for the special tokens that it ends with."""
    if len(ids) <= num_kept:
        return ids
    num = len(appended)
    if num and num < num_kept and ids[-num:] == appended:
        return ids[: num_kept - num] + appended
    return ids[:num_kept]
