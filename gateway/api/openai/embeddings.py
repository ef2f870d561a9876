"""`POST /v1/embeddings`: the vectors of one text or many, as strings or token ids."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from engine.vectors import little_endian, shortened
from gateway.api.json_parts import lazily
from gateway.api.openai.bounds import ENCODING_FORMATS
from gateway.api.openai.chunks import Chunks, Tail
from gateway.api.openai.kinds import Answer
from gateway.api.openai.parameters import EMBEDDINGS, Fates
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.sampling import requested_salt
from gateway.api.openai.schemas import (
    EmbeddingData,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingUsage,
)
from gateway.api.ranges import shown
from gateway.errors import InvalidRequest
from gateway.services.inference import MAX_INPUTS, EmbeddingJob, Piece, ServedModel, sizes_of

_INT32_MAX: Final = (1 << 31) - 1
_FATES: Final = Fates(EMBEDDINGS)


class Embeddings:
    """Shape lists of vectors."""

    id_prefix = "embd-"
    makes_vectors = True

    def __init__(self, *, ignores_unknown: bool = False) -> None:
        self.reader = Reader(EmbeddingRequest, ignores_unknown=ignores_unknown)

    def jobs(
        self, body: EmbeddingRequest, model: ServedModel, request_id: str, ignored: Ignored
    ) -> EmbeddingJob:
        """Build the job of all inputs. Raises: `InvalidRequest`."""
        for name in _FATES.taken(body):
            ignored.add(name)
        if body.encoding_format not in (None, *ENCODING_FORMATS):
            raise InvalidRequest(
                f"'encoding_format' must be one of {', '.join(ENCODING_FORMATS)}.",
                param="encoding_format",
            )
        _check_dimensions(body.dimensions, model)
        kept = body.truncate_prompt_tokens
        if kept is not None and kept != -1 and kept < 1:
            raise InvalidRequest(
                "'truncate_prompt_tokens' must be 1 or more, or -1 for what the model takes.",
                param="truncate_prompt_tokens",
            )
        return EmbeddingJob(
            request_id=request_id,
            inputs=_inputs(body.input),
            truncate_to=kept,
            adds_special_tokens=body.add_special_tokens is not False,
            salt=requested_salt(body),
        )

    def chunks(self, answer: Answer[EmbeddingRequest], *, tail: Tail) -> Chunks:
        raise AssertionError("its bodies ask for no streams")

    def document(self, answer: Answer[EmbeddingRequest], pieces: list[Piece]) -> EmbeddingList:
        [piece], body = pieces, answer.body
        data = _data(piece.vectors, body.dimensions, is_base64=body.encoding_format == "base64")
        num_tokens = sum(one.num_prompt_tokens for one in answer.run.generations)
        usage = EmbeddingUsage(num_tokens, num_tokens)
        return EmbeddingList(lazily(data), answer.envelope.model, usage)


def _data(
    vectors: Sequence[Sequence[float]], dimensions: int | None, *, is_base64: bool
) -> Iterator[EmbeddingData]:
    """Make each vector's part of the document as it is encoded."""
    for index, vector in enumerate(vectors):
        cut = vector if dimensions is None else shortened(vector, dimensions)
        if is_base64:
            yield EmbeddingData(index, b64encode(little_endian(cut)).decode())
        else:
            yield EmbeddingData(index, msgspec.Raw(msgspec.json.encode(list(cut))))  # type: ignore[arg-type]


def _check_dimensions(dimensions: int | None, model: ServedModel) -> None:
    """Raise `InvalidRequest` for a size that the model's vectors may not be cut to."""
    if dimensions is None or dimensions == model.info.embedding_size:
        return
    allowed = sizes_of(model)
    if dimensions in allowed:
        return
    if len(allowed) == 1:
        said = f"{allowed[0]}: it was not trained for its vectors to be cut"
    elif isinstance(allowed, range):
        said = f"1 to {allowed[-1]}"
    else:
        said = f"one of {', '.join(map(str, allowed))}"
    raise InvalidRequest(
        f"'dimensions' of the model '{model.name}' must be {said}.",
        param="dimensions",
    )


def _inputs(given: str | list[Any]) -> list[tuple[str, str | array[int]]]:
    """Tell a text, texts, token ids and lists of token ids apart; each with its field's name.

    How many there are is checked before anything is made of them.
    """
    if isinstance(given, str):
        return [("input", _text(given, "input"))]
    if not given:
        raise InvalidRequest("'input' is empty.", param="input")
    if type(given[0]) is int:
        return [("input", _ids(given, "input"))]
    if len(given) > MAX_INPUTS:
        raise InvalidRequest(
            f"'input' has {len(given)} items; {MAX_INPUTS} is the most.", param="input"
        )
    of_texts = isinstance(given[0], str)
    return [
        (param, _one(item, param, of_texts=of_texts))
        for param, item in ((f"input[{index}]", item) for index, item in enumerate(given))
    ]


def _one(item: Any, param: str, *, of_texts: bool) -> str | array[int]:
    if of_texts and isinstance(item, str):
        return _text(item, param)
    if not of_texts and isinstance(item, list):
        return _ids(item, param)
    raise InvalidRequest(
        "Inputs are all texts or all lists of token ids.", param=param, code="invalid_type"
    )


def _text(text: str, param: str) -> str:
    if not text:
        raise InvalidRequest("The input is empty.", param=param)
    return text


def _ids(items: list[Any], param: str) -> array[int]:
    if not items:
        raise InvalidRequest("The input is empty.", param=param)
    if set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= _INT32_MAX:
        return array("i", items)
    for index, item in enumerate(items):
        where = f"{param}[{index}]"
        if type(item) is not int:
            raise InvalidRequest(
                "Token ids are integers; do not mix them with texts.",
                param=where,
                code="invalid_type",
            )
        if not 0 <= item <= _INT32_MAX:
            raise InvalidRequest(f"Token id {shown(item)} is outside the vocabulary.", param=where)
    raise AssertionError("one of them is no token id")
