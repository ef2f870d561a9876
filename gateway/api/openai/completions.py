"""`POST /v1/completions`: one text or many, as strings or token ids."""

from __future__ import annotations

from array import array
from typing import Any, Final

import msgspec

from engine.contract import EngineInfo
from gateway.api.openai.bounds import MAX_PROMPTS
from gateway.api.openai.chunks import Tail, TextChunks
from gateway.api.openai.constraints import requested_constraint
from gateway.api.openai.kinds import Answer
from gateway.api.openai.logprobs import TextLogprobsWriter
from gateway.api.openai.parameters import COMPLETIONS, Fates
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.sampling import (
    choice_params,
    num_choices,
    requested_max_tokens,
    requested_salt,
    sampling_params,
    stop_strings,
)
from gateway.api.openai.schemas import CompletionRequest, TextChoice, TextCompletion
from gateway.api.ranges import shown
from gateway.errors import InvalidRequest
from gateway.services.inference import Job, Piece, ServedModel, check_prompt_length

# OpenAI's default for this endpoint.
DEFAULT_MAX_TOKENS: Final = 16
_INT32_MAX: Final = (1 << 31) - 1
_FATES: Final = Fates(COMPLETIONS)


class Completions:
    """Shape text completions."""

    id_prefix = "cmpl-"
    makes_vectors = False

    def __init__(self, *, ignores_unknown: bool = False) -> None:
        self.reader = Reader(CompletionRequest, ignores_unknown=ignores_unknown)

    def jobs(
        self, body: CompletionRequest, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job]:
        """Build a job a prompt and choice, the choices of a prompt together.

        Raises: `InvalidRequest`.
        """
        n = num_choices(body)
        if body.best_of == n:
            body.best_of = None
        _FATES.refuse(body)
        for name in _FATES.taken(body):
            ignored.add(name)
        is_prompt_alone = bool(body.echo) and body.max_tokens == 0
        bound = 1 if is_prompt_alone else requested_max_tokens(body)
        params = sampling_params(
            body, model.info, model.sampling_defaults, max_tokens=bound or DEFAULT_MAX_TOKENS
        )
        prompts, stop = _prompts(body.prompt, n, model.info), stop_strings(body)
        constraint = requested_constraint(body)
        return [
            Job(
                request_id=f"{request_id}-{index}-{choice}",
                prompt=prompt,
                params=choice_params(params, choice, prompt=index if body.seed is None else 0),
                stop=stop,
                clip_max_tokens=bound is None,
                prompt_param=param,
                echo=bool(body.echo),
                is_prompt_alone=is_prompt_alone,
                adds_special_tokens=body.add_special_tokens,
                salt=requested_salt(body),
                constraint=None if is_prompt_alone else constraint,
            )
            for index, (param, prompt) in enumerate(prompts)
            for choice in range(n)
        ]

    def chunks(self, answer: Answer[CompletionRequest], *, tail: Tail) -> TextChunks:
        return TextChunks(answer.envelope, tail=tail, writers=_writers(answer))

    def document(self, answer: Answer[CompletionRequest], pieces: list[Piece]) -> TextCompletion:
        envelope, writers = answer.envelope, _writers(answer)
        choices = [
            TextChoice(
                index,
                piece.text,
                piece.ended_by,
                writers[index].write(piece) if writers else None,
                answer.run.stop_cause_of(index, piece) or msgspec.UNSET,
            )
            for index, piece in enumerate(pieces)
        ]
        return TextCompletion(
            envelope.id,
            envelope.created_s,
            envelope.model,
            choices,
            answer.usage(),
            service_tier=envelope.service_tier,
            system_fingerprint=envelope.fingerprint,
        )


def _writers(answer: Answer[CompletionRequest]) -> list[TextLogprobsWriter]:
    if answer.body.logprobs is None:
        return []
    tokenizer = answer.model.tokenizer
    return [TextLogprobsWriter(tokenizer, generation.echo) for generation in answer.run.generations]


def _prompts(
    prompt: str | list[Any], n: int, info: EngineInfo
) -> list[tuple[str, str | array[int]]]:
    """Tell a text, texts, token ids and lists of token ids apart; each with its field's name.

    How many there are is checked before anything is made of them.
    """
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if not prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt")
    if _is_integer(prompt[0]):
        return [("prompt", _ids(prompt, "prompt", info))]
    if len(prompt) * n > MAX_PROMPTS:
        raise InvalidRequest(
            f"'prompt' and 'n' ask for {len(prompt) * n} choices; {MAX_PROMPTS} is the most.",
            param="n" if len(prompt) <= MAX_PROMPTS else "prompt",
        )
    params = (f"prompt[{index}]" for index in range(len(prompt)))
    kind = str if isinstance(prompt[0], str) else list
    named = zip(params, prompt, strict=True)
    return [(param, _one(item, kind, param, info)) for param, item in named]


def _one(item: Any, kind: type, param: str, info: EngineInfo) -> str | array[int]:
    if not isinstance(item, kind):
        raise InvalidRequest(
            "Prompts are all texts or all lists of token ids.", param=param, code="invalid_type"
        )
    asked: Any = item
    return asked if kind is str else _ids(asked, param, info)


def _ids(items: list[Any], param: str, info: EngineInfo) -> array[int]:
    check_prompt_length(len(items), info, param)
    if set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= _INT32_MAX:
        return array("i", items)
    for index, item in enumerate(items):
        where = f"{param}[{index}]"
        if not _is_integer(item):
            raise InvalidRequest(
                "Token ids are integers; do not mix them with texts.",
                param=where,
                code="invalid_type",
            )
        if not 0 <= item <= _INT32_MAX:
            raise InvalidRequest(f"Token id {shown(item)} is outside the vocabulary.", param=where)
    return array("i")


def _is_integer(item: Any) -> bool:
    # bool is an int in Python.
    return isinstance(item, int) and not isinstance(item, bool)
