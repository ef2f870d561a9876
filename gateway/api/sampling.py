"""Checking what a request asks of sampling: ranges first, then what this server cannot do.

A parameter is refused, never dropped: an answer that ignored a penalty would look right and be
wrong.
"""

from __future__ import annotations

import secrets
from typing import Final

from engine.contract import Capability, SamplingParams
from gateway.api.schemas import ChatRequest, CompletionRequest, SamplingFields
from gateway.errors import InvalidRequest, UnsupportedParameter

MAX_STOP_STRINGS: Final = 4
MAX_STOP_CHARS: Final = 256
MAX_STOP_TOKEN_IDS: Final = 64
_SEED_BITS: Final = 64


def sampling_params(
    body: SamplingFields, *, max_tokens: int, vocab_size: int, capabilities: frozenset[Capability]
) -> SamplingParams:
    """Build the engine's parameters.

    Raises: `InvalidRequest` for a value out of range, `UnsupportedParameter` for a feature that
    the engine does not list among its `capabilities`.
    """
    _refuse_unsupported(body)
    temperature = _in_range("temperature", body.temperature, 0.0, 2.0, default=1.0)
    top_p = _in_range("top_p", body.top_p, 0.0, 1.0, default=1.0)
    if top_p == 0.0:
        # The nucleus of 0 holds the likeliest token alone, which is greedy decoding.
        temperature, top_p = 0.0, 1.0
    presence = _in_range("presence_penalty", body.presence_penalty, -2.0, 2.0, default=0.0)
    frequency = _in_range("frequency_penalty", body.frequency_penalty, -2.0, 2.0, default=0.0)
    if (presence or frequency) and Capability.PENALTIES not in capabilities:
        param = "presence_penalty" if presence else "frequency_penalty"
        raise UnsupportedParameter(
            f"This engine has no penalties; leave '{param}' out.", param=param
        )
    if body.logit_bias and Capability.LOGIT_BIAS not in capabilities:
        raise UnsupportedParameter(
            "This engine has no logit bias; leave 'logit_bias' out.", param="logit_bias"
        )
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=_int_in_range("top_k", body.top_k, -1, vocab_size, default=0, off=-1),
        top_p=top_p,
        min_p=_in_range("min_p", body.min_p, 0.0, 1.0, default=0.0),
        seed=_seed(body.seed),
        stop_token_ids=_stop_token_ids(body.stop_token_ids, vocab_size),
        ignore_eos=bool(body.ignore_eos),
        presence_penalty=presence,
        frequency_penalty=frequency,
    )


def requested_max_tokens(body: ChatRequest | CompletionRequest) -> int | None:
    """Return the bound the client set on output tokens, or None. Raises: `InvalidRequest`."""
    param, value = "max_tokens", body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        param, value = "max_completion_tokens", body.max_completion_tokens
    if value is None:
        return None
    if not 1 <= value < 1 << 31:
        raise InvalidRequest(
            f"'{param}' must be at least 1 and fit 31 bits, not {_shown(value)}.",
            param=param,
            code="invalid_value",
        )
    return value


def stop_strings(body: SamplingFields) -> tuple[str, ...]:
    """Return the stop strings, none of them empty. Raises: `InvalidRequest`."""
    if body.stop is None:
        return ()
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"'stop' takes up to {MAX_STOP_STRINGS} strings, not {len(stops)}.",
            param="stop",
            code="invalid_value",
        )
    if any(not 1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise InvalidRequest(
            f"Each 'stop' string must have 1 to {MAX_STOP_CHARS} characters.",
            param="stop",
            code="invalid_value",
        )
    return stops


def _refuse_unsupported(body: SamplingFields) -> None:
    _int_in_range("n", body.n, 1, 8, default=1)
    unsupported: dict[str, bool] = {
        "n": body.n not in (None, 1),
        "service_tier": body.service_tier not in (None, "auto", "default"),
    }
    if isinstance(body, ChatRequest):
        unsupported |= {
            "logprobs": bool(body.logprobs),
            "top_logprobs": bool(body.top_logprobs),
            "response_format": body.response_format is not None
            and body.response_format.type != "text",
            "tools": bool(body.tools),
            "tool_choice": body.tool_choice not in (None, "none", "auto"),
            "store": bool(body.store),
        }
    elif isinstance(body, CompletionRequest):
        unsupported |= {
            "echo": bool(body.echo),
            "best_of": body.best_of not in (None, 1),
            "logprobs": body.logprobs is not None,
            "suffix": bool(body.suffix),
        }
    for param, asked in unsupported.items():
        if asked:
            raise UnsupportedParameter(
                f"This server does not support this value of '{param}'.", param=param
            )


def _in_range(param: str, value: float | None, low: float, high: float, *, default: float) -> float:
    if value is None:
        return default
    if not low <= value <= high:  # NaN fails this too
        raise InvalidRequest(
            f"'{param}' must be between {low:g} and {high:g}, not {value:g}.",
            param=param,
            code="invalid_value",
        )
    return float(value)


def _int_in_range(
    param: str, value: int | None, low: int, high: int, *, default: int, off: int | None = None
) -> int:
    """Check an integer; `off` is a second spelling of the default (vLLM's `top_k: -1`)."""
    if value is None or value == off:
        return default
    if not low <= value <= high:
        raise InvalidRequest(
            f"'{param}' must be between {low} and {high}, not {_shown(value)}.",
            param=param,
            code="invalid_value",
        )
    return value


def _seed(value: int | None) -> int:
    if value is None:
        return secrets.randbits(_SEED_BITS - 1)
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidRequest("'seed' must fit 64 bits.", param="seed", code="invalid_value")
    return value


def _stop_token_ids(ids: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    if ids is None:
        return ()
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"'stop_token_ids' takes up to {MAX_STOP_TOKEN_IDS} ids.",
            param="stop_token_ids",
            code="invalid_value",
        )
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"Token id {_shown(token_id)} is outside the vocabulary of {vocab_size}.",
                param=f"stop_token_ids[{index}]",
                code="invalid_value",
            )
    return tuple(ids)


def _shown(value: int) -> str:
    """Spell a number in an error without echoing hundreds of digits."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}… ({len(text)} digits)"
