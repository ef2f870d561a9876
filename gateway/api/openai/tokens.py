"""`POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, in vLLM's shapes.

Evaluations ask for these where they have no tokenizer of their own: one text at a time, thousands
of them, and they give up at the first refusals. So nobody's quota holds them; they are counted as
reads are, a short one as a small part of one, and who asks too often waits for a while before it is
refused. A text may be longer than the context: how long it is, is what is asked.

All but short bodies are worked on in the pool that is fair between tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.errors import ChatTemplateError
from engine.text import InvalidText
from gateway.api.access import require_model
from gateway.api.body import SHORT_BODY_BYTES, ClientGone, read_parts
from gateway.api.held_bytes import HeldBytes
from gateway.api.json_parts import encode_in_parts, giving_way, lazily
from gateway.api.openai.answer import send_document
from gateway.api.openai.kinds import require_role
from gateway.api.openai.parameters import TOKENIZE, Fates
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.schemas import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from gateway.api.openai.tools import Mode, checked_tools, offer_of
from gateway.api.openai.turns import Turns
from gateway.api.ranges import shown
from gateway.domain import Principal
from gateway.errors import InvalidRequest
from gateway.services.fair_pool import FairPool
from gateway.services.health import OverloadWatch
from gateway.services.inference import ModelRegistry, ServedModel, chat_text, texts
from gateway.services.read_rate import ReadRate

# What is tokenised where it stands, in 100 µs.
_SHORT_BYTES: Final = 512
# A body of so much is one twentieth of a read.
_BYTES_A_SHARE: Final = 4 << 10
_READS_A_SHARE: Final = 0.05
# The library hands all tokens of a text over in one call, and keeps the interpreter for it: as much
# as any prompt may be, or so much, which takes 10 ms.
_MAX_TEXT_BYTES: Final = 256 << 10
_MAX_BYTES_PER_TOKEN: Final = 8
# An answer that is encoded in one call.
_FEW_TOKENS: Final = 1 << 12
_TEXT_A_CALL: Final = 64 << 10
# A decoder keeps the interpreter for milliseconds at a time.
_REST_RATIO: Final = 5.0

Work = Callable[[Principal, bytes, Ignored], list[bytes]]


@dataclass(frozen=True, slots=True)
class Desk:
    """Hold what requests about tokens stand on."""

    pool: FairPool
    bodies: HeldBytes
    answers: HeldBytes
    overload: OverloadWatch
    reads: ReadRate | None = None


def token_routes(tokens: Tokens, desk: Desk, keyed: Callable[..., Route]) -> list[Route]:
    """Declare the routes; `keyed` is `tenant_only` with what it needs beside."""

    async def info(request: Request) -> Response:
        principal: Principal = request.state.principal
        body = tokens.info(principal, request.query_params.get("model"))
        return Response(body, media_type="application/json")

    return [
        keyed("/tokenize", TokenEndpoint(desk, tokens.tokenize), method="POST"),
        keyed("/detokenize", TokenEndpoint(desk, tokens.detokenize), method="POST"),
        keyed("/tokenizer_info", info, method="GET", reads=desk.reads),
    ]


class TokenEndpoint:
    """Read a body, have `work` make an answer of it, and send that."""

    def __init__(self, desk: Desk, work: Work) -> None:
        self._desk = desk
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except ClientGone:
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        desk = self._desk
        desk.overload.check_unread()
        principal: Principal = scope["state"]["principal"]
        ignored = Ignored()
        told_bytes = _content_length(scope)
        await self._pace(principal, told_bytes)
        with desk.bodies.room(principal.tenant_id) as room:
            body = await read_parts(scope, receive, room=room)
            size_bytes = sum(map(len, body))
            if size_bytes > told_bytes:
                await self._pace(principal, size_bytes - told_bytes)
            parts = await self._made(principal, body, size_bytes, ignored)
        scope["state"]["answer_headers"] = ignored.headers()
        with desk.answers.room(principal.tenant_id) as room:
            room.grow(sum(map(len, parts)))
            await send_document(send, parts)

    async def _pace(self, principal: Principal, size_bytes: int) -> None:
        if self._desk.reads is not None:
            shares = 1 + size_bytes // _BYTES_A_SHARE
            await self._desk.reads.pace(principal.tenant_id, shares * _READS_A_SHARE)

    async def _made(
        self, principal: Principal, body: Sequence[bytes], size_bytes: int, ignored: Ignored
    ) -> list[bytes]:
        def make() -> list[bytes]:
            return self._work(principal, b"".join(body), ignored)

        if size_bytes <= _SHORT_BYTES:
            return make()
        rest_ratio = _REST_RATIO if size_bytes > SHORT_BODY_BYTES else 0.0
        return await self._desk.pool.run(
            principal.tenant_id, make, size_bytes=size_bytes, rest_ratio=rest_ratio
        )


class Tokens:
    """Make the answers."""

    def __init__(self, models: ModelRegistry, *, ignores_unknown: bool = False) -> None:
        self._models = models
        self._ignores_unknown = ignores_unknown
        self._texts = Reader(TokenizeRequest, ignores_unknown=ignores_unknown)
        self._tokens = Reader(DetokenizeRequest, ignores_unknown=ignores_unknown)

    def tokenize(self, principal: Principal, raw: bytes, ignored: Ignored) -> list[bytes]:
        """Answer `POST /tokenize`.

        Raises: `InvalidRequest`, `ModelNotFound`, `PermissionDenied`.
        """
        body = self._texts.read(raw, ignored)
        _TOKENIZE.refuse(body)
        model = self._model(principal, body.model)
        try:
            text, adds = self._text(model, body, ignored)
            _check_size(text, model, body)
            token_ids = model.tokenizer.encode(text, add_special_tokens=adds)
        except (ChatTemplateError, InvalidText) as exc:
            param = "prompt" if body.messages is None else "messages"
            raise InvalidRequest(str(exc), param=param) from None
        names = model.tokenizer.names(token_ids) if body.return_token_strs else None
        answer = TokenizeAnswer(
            len(token_ids),
            model.info.max_model_len,
            lazily(token_ids),
            None if names is None else lazily(names),
        )
        parts = encode_in_parts(answer)
        return list(parts if len(token_ids) <= _FEW_TOKENS else giving_way(parts))

    def detokenize(self, principal: Principal, raw: bytes, ignored: Ignored) -> list[bytes]:
        """Answer `POST /detokenize`. Raises: as `tokenize`."""
        body = self._tokens.read(raw, ignored)
        model = self._model(principal, body.model)
        _check_ids(body.tokens, model.info.vocab_size)
        text = model.tokenizer.decode(body.tokens, spells_special=True)
        if len(text) <= _TEXT_A_CALL:
            return [msgspec.json.encode(DetokenizeAnswer(text))]
        some = (text[at : at + _TEXT_A_CALL] for at in range(0, len(text), _TEXT_A_CALL))
        inner = giving_way(msgspec.json.encode(part)[1:-1] for part in some)
        return [b'{"prompt":"', *inner, b'"}']

    def info(self, principal: Principal, name: str | None) -> bytes:
        """Answer `GET /tokenizer_info`. Raises: `ModelNotFound`, `PermissionDenied`."""
        model = self._model(principal, name)
        named = model.tokenizer.special_tokens
        template = model.chat_template
        answer = TokenizerInfo(
            tokenizer_class="PreTrainedTokenizerFast",
            model_max_length=model.info.max_model_len,
            vocab_size=model.tokenizer.vocab_size,
            bos_token=named.get("bos_token"),
            eos_token=named.get("eos_token"),
            pad_token=named.get("pad_token"),
            unk_token=named.get("unk_token"),
            chat_template=None if template is None else template.standalone(),
        )
        return msgspec.json.encode(answer)

    def _model(self, principal: Principal, name: str | None) -> ServedModel:
        if name is None:
            model, *others = self._models
            if others:
                raise InvalidRequest(
                    "'model' says whose tokens are meant; GET /v1/models lists them.", param="model"
                )
        else:
            model = self._models.get(name)
        require_model(principal, model)
        return model

    def _text(
        self, model: ServedModel, body: TokenizeRequest, ignored: Ignored
    ) -> tuple[str, bool]:
        """Return what is tokenised, and whether special tokens are added."""
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("Send either 'prompt' or 'messages'.", param="prompt")
        if body.messages is None:
            assert body.prompt is not None, "one of them is there"
            for name in _OF_CHATS:
                if getattr(body, name):
                    raise InvalidRequest(f"'{name}' goes with 'messages'.", param=name)
            return body.prompt, body.add_special_tokens is not False
        require_role(model, makes_vectors=False)
        continues = bool(body.continue_final_message)
        if continues and body.add_generation_prompt:
            raise InvalidRequest(
                "'add_generation_prompt' and 'continue_final_message' exclude each other.",
                param="continue_final_message",
            )
        turns = Turns(model, ignored, ignores_unknown=self._ignores_unknown)
        messages = turns.messages(body.messages)
        offer = offer_of(Mode.AUTO, checked_tools(body.tools or []), model, ignored)
        _check_size("".join(texts(messages)), model, body, num_more=offer.num_chars)
        text = chat_text(
            model,
            messages,
            variables=turns.variables(body.chat_template_kwargs),
            tools=offer.tools,
            add_generation_prompt=not continues and body.add_generation_prompt is not False,
            continue_final_message=continues,
        )
        return text, bool(body.add_special_tokens)


_TOKENIZE: Final = Fates(TOKENIZE)
_OF_CHATS: Final = ("continue_final_message", "chat_template_kwargs", "tools")


def _check_size(text: str, model: ServedModel, body: TokenizeRequest, *, num_more: int = 0) -> None:
    limit = max(_MAX_TEXT_BYTES, _MAX_BYTES_PER_TOKEN * model.info.max_model_len)
    # Of what JSON was read as, so there is no half of a character.
    if len(text.encode()) + num_more > limit:
        raise InvalidRequest(
            f"The text is longer than {limit} bytes.",
            param="prompt" if body.messages is None else "messages",
        )


def _check_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"Token id {shown(token_id)} is outside the vocabulary of {vocab_size}.",
                param=f"tokens[{index}]",
            )


def _content_length(scope: Scope) -> int:
    lengths = (int(value) for name, value in scope["headers"] if name == b"content-length")
    return next(lengths, 0)
