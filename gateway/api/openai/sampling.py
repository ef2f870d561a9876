"""Checking what a request asks of sampling: ranges first, then what this engine cannot do.

What would change an answer is refused, never dropped: one that ignored a penalty would look right
and be wrong.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from engine.contract import Capability, EngineInfo, SamplingParams
from engine.generation_config import SamplingDefaults
from gateway.api.openai.bounds import (
    INTEGERS,
    MAX_CHOICES,
    MAX_LOGIT_BIASES,
    MAX_METADATA_NAME_CHARS,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE_CHARS,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKEN_ID_DIGITS,
    NUMBERS,
)
from gateway.api.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    OpenAiFields,
    RequestFields,
    SamplingFields,
)
from gateway.api.ranges import in_range, int_in_range, shown
from gateway.domain import Tier
from gateway.errors import InvalidRequest, UnsupportedParameter

# No secret hangs on a seed, and asking the kernel for each takes a request 10 µs.
_SEEDS: Final = random.Random()
_SEED_MASK: Final = (1 << 64) - 1
# An odd constant of large order keeps the seeds of a request's choices apart.
_SEED_STEP: Final = 0x9E3779B97F4A7C15

# What the engine may lack → the fields that ask for it.
_FIELDS: Final = {
    Capability.PENALTIES: ("presence_penalty", "frequency_penalty", "repetition_penalty"),
    Capability.LOGIT_BIAS: ("logit_bias",),
    Capability.MIN_TOKENS: ("min_tokens",),
    Capability.LOGPROBS: ("logprobs",),
    Capability.PROMPT_LOGPROBS: ("prompt_logprobs",),
}

_PLAIN: Final = SamplingParams(max_tokens=1)


def sampling_params(
    body: SamplingFields, info: EngineInfo, defaults: SamplingDefaults, *, max_tokens: int
) -> SamplingParams:
    """Build the engine's parameters of a request's first choice.

    What it does not say is as the model's `defaults` have it; `max_tokens` is decided before.
    Raises: `InvalidRequest` for a value out of range, `UnsupportedParameter` for a feature that
    the engine does not list among its capabilities.
    """
    temperature = _number("temperature", body.temperature, default=defaults.temperature)
    top_p = _number("top_p", body.top_p, default=defaults.top_p)
    if top_p == 0.0:
        # The nucleus of 0 holds the likeliest token alone, which is greedy decoding.
        temperature, top_p = 0.0, 1.0
    logprobs = _num_logprobs(body)
    echo = isinstance(body, CompletionRequest) and bool(body.echo)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=_top_k(body.top_k, info.vocab_size, defaults.top_k),
        top_p=top_p,
        min_p=_number("min_p", body.min_p, default=defaults.min_p),
        seed=_seed(body.seed),
        stop_token_ids=_stop_token_ids(body.stop_token_ids, info.vocab_size),
        ignore_eos=bool(body.ignore_eos),
        min_tokens=int_in_range("min_tokens", body.min_tokens, 0, max_tokens, default=0),
        presence_penalty=_number("presence_penalty", body.presence_penalty, default=0),
        frequency_penalty=_number("frequency_penalty", body.frequency_penalty, default=0),
        repetition_penalty=_number(
            "repetition_penalty", body.repetition_penalty, default=defaults.repetition_penalty
        ),
        logit_bias=_logit_bias(body.logit_bias, info.vocab_size),
        logprobs=logprobs,
        prompt_logprobs=logprobs if echo else None,
    )
    _refuse_incapable(params, info)
    return params


def choice_params(params: SamplingParams, choice: int, *, prompt: int = 0) -> SamplingParams:
    """Return the parameters of one of `n` choices: the first keeps the seed, as if alone.

    A drawn seed is for one prompt: equal `prompt`s of a list must not get equal answers.
    """
    step = prompt * MAX_CHOICES + choice
    return replace(params, seed=(params.seed + step * _SEED_STEP) & _SEED_MASK) if step else params


def num_choices(body: SamplingFields) -> int:
    """Return `n`. Raises: `InvalidRequest`."""
    return _integer("n", body.n, default=1)


def default_max_tokens(body: ChatRequest, info: EngineInfo, defaults: SamplingDefaults) -> int:
    """Return how many tokens a chat may have that sets no bound: the model's, or its context.

    What the client does ask for wins: a default below its `min_tokens` is none.
    """
    most = defaults.max_tokens
    if most is not None and most >= (body.min_tokens or 0):
        return most
    # A prompt has a token at least.
    return max(1, info.max_model_len - 1)


def requested_max_tokens(body: ChatRequest | CompletionRequest) -> int | None:
    """Return the bound the client set on output tokens, or None. Raises: `InvalidRequest`."""
    bound = body.max_tokens
    if bound is not None:
        _integer("max_tokens", bound, default=1)
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        bound = _integer("max_completion_tokens", body.max_completion_tokens, default=1)
    return bound


def stop_strings(body: SamplingFields) -> tuple[str, ...]:
    """Return the stop strings, none of them empty. Raises: `InvalidRequest`."""
    if body.stop is None:
        return ()
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"'stop' takes up to {MAX_STOP_STRINGS} strings, not {len(stops)}.",
            param="stop",
        )
    if any(not 1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise InvalidRequest(
            f"Each 'stop' string must have 1 to {MAX_STOP_CHARS} characters.",
            param="stop",
        )
    return stops


def requested_salt(body: OpenAiFields) -> str | None:
    """Return what narrows prefix sharing inside the tenant. Raises: `InvalidRequest`."""
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= MAX_SALT_CHARS:
        raise InvalidRequest(
            f"'cache_salt' must have 1 to {MAX_SALT_CHARS} characters.", param="cache_salt"
        )
    return body.cache_salt


def check_labels(body: RequestFields) -> None:
    """Hold what has no effect to OpenAI's bounds all the same. Raises: `InvalidRequest`."""
    pairs = body.metadata or {}
    if len(pairs) > MAX_METADATA_PAIRS:
        raise InvalidRequest(
            f"'metadata' takes up to {MAX_METADATA_PAIRS} pairs, not {len(pairs)}.",
            param="metadata",
        )
    for name, value in pairs.items():
        if len(name) > MAX_METADATA_NAME_CHARS or len(value) > MAX_METADATA_VALUE_CHARS:
            raise InvalidRequest(
                f"'metadata' takes names of up to {MAX_METADATA_NAME_CHARS} and values of up to "
                f"{MAX_METADATA_VALUE_CHARS} characters.",
                param="metadata",
            )


def requested_tier(body: RequestFields) -> Tier | None:
    """Return the service tier asked for; None is `auto`. Raises: `InvalidRequest`.

    vLLM's `priority` only ever asks for less: above 0 it is `flex`.
    """
    if body.service_tier is None or body.service_tier == "auto":
        return Tier.FLEX if body.priority is not None and body.priority > 0 else None
    try:
        return Tier(body.service_tier)
    except ValueError:
        raise InvalidRequest(
            f"'service_tier' must be one of auto, {', '.join(sorted(Tier))}.",
            param="service_tier",
        ) from None


def _number(param: str, value: float | None, *, default: float) -> float:
    if value is None:
        return float(default)
    return in_range(param, value, *NUMBERS[param], default=default)


def _integer(param: str, value: int | None, *, default: int) -> int:
    if value is None:
        return default
    return int_in_range(param, value, *INTEGERS[param], default=default)


def _refuse_incapable(params: SamplingParams, info: EngineInfo) -> None:
    if info.capabilities >= _FIELDS.keys():
        return
    for capability, fields in _FIELDS.items():
        if capability in info.capabilities:
            continue
        for field in fields:
            if getattr(params, field) != getattr(_PLAIN, field):
                raise UnsupportedParameter(
                    f"This engine cannot do what '{field}' asks; leave it out.", param=field
                )


def _num_logprobs(body: SamplingFields) -> int | None:
    """Return how many alternatives to report beside each token, or None for no logprobs."""
    if isinstance(body, CompletionRequest):
        if body.logprobs is None:
            return None
        return _integer("logprobs", body.logprobs, default=0)
    assert isinstance(body, ChatRequest)
    top = _integer("top_logprobs", body.top_logprobs, default=0)
    if top and not body.logprobs:
        raise InvalidRequest(
            "'top_logprobs' needs 'logprobs' to be true.",
            param="top_logprobs",
        )
    return top if body.logprobs else None


def _top_k(value: int | None, vocab_size: int, default: int) -> int:
    """Read `top_k`; -1 is another word for 0, which is off, whatever the default."""
    return max(0, int_in_range("top_k", value, -1, vocab_size, default=default))


def _seed(value: int | None) -> int:
    if value is None:
        return _SEEDS.getrandbits(64)
    low, high = INTEGERS["seed"]
    if not low <= value <= high:
        raise InvalidRequest(f"'seed' must be between {low} and {high}.", param="seed")
    return value


def _stop_token_ids(ids: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    if ids is None:
        return ()
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"'stop_token_ids' takes up to {MAX_STOP_TOKEN_IDS} ids.",
            param="stop_token_ids",
        )
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"Token id {shown(token_id)} is outside the vocabulary of {vocab_size}.",
                param=f"stop_token_ids[{index}]",
            )
    return tuple(ids)


def _logit_bias(biases: dict[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Read OpenAI's map from token ids, spelled as strings, to biases."""
    if not biases:
        return ()
    if len(biases) > MAX_LOGIT_BIASES:
        raise InvalidRequest(
            f"'logit_bias' takes up to {MAX_LOGIT_BIASES} entries, not {len(biases)}.",
            param="logit_bias",
        )
    read = {}
    for key, bias in biases.items():
        is_id = key.isascii() and key.isdigit() and len(key) <= MAX_TOKEN_ID_DIGITS
        if not is_id or int(key) >= vocab_size:
            raise InvalidRequest(
                f"'logit_bias' names tokens by ids from 0 to {vocab_size - 1}.",
                param="logit_bias",
            )
        read[int(key)] = _number("logit_bias", bias, default=0)
    return tuple(read.items())
