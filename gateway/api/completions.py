"""`POST /v1/completions`: one text or many, as strings or token ids."""

from __future__ import annotations

from array import array
from typing import Any, Final

from gateway.api.body import JsonBody
from gateway.api.chunks import Envelope, TextChunks
from gateway.api.sampling import requested_max_tokens, sampling_params, stop_strings
from gateway.api.schemas import CompletionRequest, TextChoice, TextCompletion, Usage
from gateway.errors import InvalidRequest
from gateway.services.inference import Job
from gateway.services.models import ServedModel

# OpenAI's default for this endpoint.
DEFAULT_MAX_TOKENS: Final = 16
MAX_PROMPTS: Final = 128
_INT32_MAX: Final = (1 << 31) - 1


class Completions:
    """Shape text completions."""

    body = JsonBody(CompletionRequest)
    id_prefix = "cmpl"

    def jobs(self, body: CompletionRequest, model: ServedModel, request_id: str) -> list[Job]:
        """Build a job a prompt. Raises: `InvalidRequest`."""
        bound = requested_max_tokens(body)
        params = sampling_params(
            body,
            max_tokens=bound or DEFAULT_MAX_TOKENS,
            vocab_size=model.info.vocab_size,
            capabilities=model.info.capabilities,
        )
        stop = stop_strings(body)
        return [
            Job(
                request_id=f"{request_id}-{index}",
                prompt=prompt,
                params=params,
                stop=stop,
                clip_max_tokens=bound is None,
                prompt_param=param,
            )
            for index, (param, prompt) in enumerate(_prompts(body.prompt))
        ]

    def chunks(self, envelope: Envelope, *, include_usage: bool) -> TextChunks:
        return TextChunks(envelope, include_usage=include_usage)

    def document(
        self, envelope: Envelope, texts: list[tuple[str, str]], usage: Usage
    ) -> TextCompletion:
        choices = [TextChoice(index, *answer) for index, answer in enumerate(texts)]
        return TextCompletion(
            envelope.id,
            envelope.created_s,
            envelope.model,
            choices,
            usage,
            system_fingerprint=envelope.fingerprint,
        )


def _prompts(prompt: str | list[Any]) -> list[tuple[str, str | array[int]]]:
    """Tell a text, texts, token ids and lists of token ids apart; each with its field's name."""
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if not prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt", code="invalid_value")
    if _is_id(prompt[0]):
        return [("prompt", _ids(prompt, "prompt"))]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(
            f"'prompt' takes up to {MAX_PROMPTS} prompts, not {len(prompt)}.",
            param="prompt",
            code="invalid_value",
        )
    params = (f"prompt[{index}]" for index in range(len(prompt)))
    return [(param, _one(item, param)) for param, item in zip(params, prompt, strict=True)]


def _one(item: Any, param: str) -> str | array[int]:
    if isinstance(item, str):
        return item
    if isinstance(item, list):
        return _ids(item, param)
    raise InvalidRequest(
        "A prompt is a text or a list of token ids.", param=param, code="invalid_type"
    )


def _ids(items: list[Any], param: str) -> array[int]:
    for index, item in enumerate(items):
        if not _is_id(item):
            raise InvalidRequest(
                "Token ids are integers from 0 up; do not mix them with texts.",
                param=f"{param}[{index}]",
                code="invalid_type",
            )
    return array("i", items)


def _is_id(item: Any) -> bool:
    # bool is an int in Python, and -1 must be named as an id, not as a wrong type of prompt.
    return isinstance(item, int) and not isinstance(item, bool) and abs(item) <= _INT32_MAX
