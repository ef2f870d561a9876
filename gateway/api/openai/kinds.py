"""What a request for text is, however it came: by HTTP, or as an item of a batch.

A body that is not short is decoded and checked on a pool that is fair between tenants, and a long
answer is shaped and encoded there: neither holds the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import msgspec

from gateway.api.access import require_model
from gateway.api.body import SHORT_BODY_BYTES
from gateway.api.held_bytes import GrowingRoom, Room
from gateway.api.json_parts import encode_in_parts, giving_way
from gateway.api.openai.answer import Gathering, usage_of
from gateway.api.openai.chunks import Chunks, Envelope, Tail
from gateway.api.openai.parameters import STREAM_OPTIONS, Fates
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.sampling import check_labels
from gateway.api.openai.schemas import RequestFields
from gateway.api.token_usage import Usage
from gateway.domain import Principal
from gateway.errors import InvalidRequest
from gateway.services.fair_pool import FairPool
from gateway.services.inference import EmbeddingJob, Job, ModelRegistry, Piece, Run, ServedModel

Body = TypeVar("Body", bound=RequestFields)

# What is gathered is shaped where it stands up to so much, in a millisecond; more, on a thread.
_FEW_HELD_BYTES: Final = 16 << 10
_FEW_TOKENS: Final = 1 << 16
# A decoder keeps the interpreter for milliseconds at a time.
_DECODE_REST_RATIO: Final = 5.0
# A schema of some KiB is rewritten in tens of milliseconds.
_SHORT_FORM_BYTES: Final = 1 << 10
_STREAM: Final = Fates(STREAM_OPTIONS)
# A vector's number, and how it is spelled, twice while parts are joined; and the same as base64.
_NUMBER_BYTES: Final = 48
_ENCODED_NUMBER_BYTES: Final = 16


class AnswerKind(Protocol[Body]):
    """Say how one endpoint reads a body and shapes an answer.

    `makes_vectors` says of which models it is: those that make them, or the others.
    """

    makes_vectors: bool
    reader: Reader[Body]
    id_prefix: str

    def jobs(
        self, body: Body, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job] | EmbeddingJob: ...
    def chunks(self, answer: Answer[Body], *, tail: Tail) -> Chunks: ...
    def document(self, answer: Answer[Body], pieces: list[Piece]) -> msgspec.Struct: ...


@dataclass(frozen=True, slots=True)
class Answer(Generic[Body]):
    """Hold what shaping an answer needs to know about it."""

    body: Body
    model: ServedModel
    run: Run
    envelope: Envelope
    is_batch: bool = False

    @property
    def num_tokens(self) -> int:
        """Count the output tokens of all choices."""
        return sum(generation.num_output_tokens for generation in self.run.generations)

    def usage(self) -> Usage:
        return usage_of(self.run.generations, choices_per_prompt=self.body.n or 1)


class Understood(NamedTuple, Generic[Body]):
    """Say what a body asks for, of which model."""

    body: Body
    model: ServedModel
    jobs: list[Job] | EmbeddingJob
    ignored: Ignored


class _Read(NamedTuple, Generic[Body]):
    body: Body
    model: ServedModel
    ignored: Ignored


class Understanding(Generic[Body]):
    """Understand bodies of one kind, those of batches' items as those of requests."""

    def __init__(self, kind: AnswerKind[Body], models: ModelRegistry, pool: FairPool) -> None:
        self._kind = kind
        self._models = models
        self._pool = pool

    async def understand(
        self, principal: Principal, parts: list[bytes], request_id: str, *, beside_bytes: int = 0
    ) -> Understood[Body]:
        """Decode and check a body, on a thread where that takes long.

        `beside_bytes` is what is looked at beside it.
        Raises: `InvalidRequest`, `ModelNotFound`, `PermissionDenied`; what the pool raises.
        """
        tenant_id = principal.tenant_id
        size_bytes = sum(map(len, parts)) + beside_bytes
        if size_bytes <= SHORT_BODY_BYTES:
            read = self._read(principal, parts)
            finish = partial(self._finish, *read, request_id)
            if size_bytes <= _SHORT_FORM_BYTES or not read.body.may_have_form:
                return finish()
            return await self._pool.run(tenant_id, finish, size_bytes=size_bytes)

        def understand() -> Understood[Body]:
            return self._finish(*self._read(principal, parts), request_id)

        return await self._pool.run(
            tenant_id, understand, size_bytes=size_bytes, rest_ratio=_DECODE_REST_RATIO
        )

    def _read(self, principal: Principal, parts: list[bytes]) -> _Read[Body]:
        ignored = Ignored()
        body = self._kind.reader.read(b"".join(parts), ignored)
        if not body.model:
            raise InvalidRequest("'model' is empty; GET /v1/models lists them.", param="model")
        model = self._models.get(body.model)
        require_model(principal, model)
        require_role(model, makes_vectors=self._kind.makes_vectors)
        check_labels(body)
        if body.priority is not None and body.priority < 0:
            ignored.add("priority")
        if body.stream_options is not None:
            for name in _STREAM.taken(body.stream_options):
                ignored.add(f"stream_options.{name}")
        return _Read(body, model, ignored)

    def _finish(
        self, body: Body, model: ServedModel, ignored: Ignored, request_id: str
    ) -> Understood[Body]:
        return Understood(body, model, self._kind.jobs(body, model, request_id, ignored), ignored)


def require_role(model: ServedModel, *, makes_vectors: bool) -> None:
    """Raise `InvalidRequest` where a model is not for what is asked of it."""
    if makes_vectors == (model.embedding is not None):
        return
    does = "makes no embeddings" if makes_vectors else "makes embeddings alone: /v1/embeddings"
    raise InvalidRequest(
        f"The model '{model.name}' {does}. GET /v1/models lists what is served.",
        param="model",
        code="model_not_supported",
    )


def take_room(understood: Understood[Any], room: GrowingRoom) -> None:
    """Take what vectors need that a body asks for, before any is made.

    Raises: `AnswersTooLarge`, `AnswersSaturated`: there is no room; `InvalidRequest`: its tenant
    would not have it with nothing else there.
    """
    body, jobs = understood.body, understood.jobs
    if not isinstance(jobs, EmbeddingJob):
        return
    is_encoded = body.encoding_format == "base64"
    number_bytes = _ENCODED_NUMBER_BYTES if is_encoded else _NUMBER_BYTES
    size_bytes = len(jobs.inputs) * understood.model.info.embedding_size * number_bytes
    if room.is_too_small(size_bytes):
        raise InvalidRequest(
            "The vectors of this answer are more than the server gathers for one tenant; send "
            "fewer inputs" + ("." if is_encoded else ", or ask for base64."),
            param="input",
        )
    room.reserve(size_bytes)


async def shape_whole(
    kind: AnswerKind[Body],
    answer: Answer[Body],
    gatherings: Sequence[Gathering],
    pool: FairPool,
    room: Room,
    tenant_id: UUID,
) -> list[bytes]:
    """Return what was gathered as the parts of one document, shaped on a thread if it is long."""

    def document() -> Iterator[bytes]:
        pieces = [each.whole() for each in gatherings]
        shaped = kind.document(answer, pieces)
        is_long = any(piece.logprobs or piece.prompt_logprobs or piece.vectors for piece in pieces)
        if answer.num_tokens <= _FEW_TOKENS and not is_long:
            # An answer that ended at once has log-probabilities too: a few, or none.
            return iter((msgspec.json.encode(shaped, enc_hook=list),))
        return encode_in_parts(shaped)

    if room.num_bytes > _FEW_HELD_BYTES or answer.num_tokens > _FEW_TOKENS:
        return await pool.run(tenant_id, lambda: list(giving_way(document())))
    return list(document())
