"""Log-probabilities in OpenAI's two shapes: one for chats, an older one for text completions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import cast

import msgspec

from engine.contract import TokenLogprobs
from engine.text import Tokenizer
from gateway.api.json_parts import lazily
from gateway.api.openai.spelled import spelled_tokens
from gateway.services.inference import Echo, Piece


class TopLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Spell the log-probabilities of a chat's content."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """Spell the log-probabilities of a completion, as parallel lists; a first token's are null."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """Spell the log-probabilities of some tokens of a chat, while they are encoded."""
    spelled = map(spelled_tokens(tokenizer).chat, logprobs)
    return ChatLogprobs(cast(list[TokenLogprob], lazily(spelled)))


class TextLogprobsWriter:
    """Spell the log-probabilities of one completion as it grows; offsets count characters."""

    def __init__(self, tokenizer: Tokenizer, echo: Echo | None) -> None:
        self._tokens = spelled_tokens(tokenizer)
        self._echo = echo
        self._offset = 0

    def write(self, piece: Piece) -> TextLogprobs:
        """Spell what a piece brings; with an echo, the first one's prompt too.

        The log-probabilities are spelled while they are encoded.
        """
        # The end token too: evaluations drop the last entry, which must not be one of the text.
        parts = (self._echoed(piece), piece.logprobs, piece.end_logprobs)
        token_ids = [entry.token_id for entry in chain(*parts[1:])]
        offsets: list[int] = []
        if self._echo is not None:
            echoed = self._echo.token_ids
            *offsets, self._offset = self._tokens.offsets(echoed, 0, self._echo.text)
            *more, self._offset = self._tokens.offsets(token_ids, self._offset)
            offsets += more
            token_ids = [*echoed, *token_ids]
            self._echo = None
        else:
            *offsets, self._offset = self._tokens.offsets(token_ids, self._offset)
        assert len(token_ids) == sum(map(len, parts)), "every token is scored or none"
        names = list(map(self._tokens.name, token_ids))
        logprobs = (None if entry is None else entry.logprob for entry in chain(*parts))
        return TextLogprobs(
            tokens=names,
            token_logprobs=lazily(logprobs),
            top_logprobs=cast(list[dict[str, float] | None], lazily(map(self._top, chain(*parts)))),
            text_offset=offsets,
        )

    def _echoed(self, piece: Piece) -> Sequence[TokenLogprobs | None]:
        if self._echo is None:
            return ()
        return piece.prompt_logprobs or [None] * len(self._echo.token_ids)

    def _top(self, entry: TokenLogprobs | None) -> msgspec.Raw | None:
        return None if entry is None else self._tokens.text(entry)
