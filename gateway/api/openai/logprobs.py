"""Log-probabilities in OpenAI's two shapes: one for chats, an older one for text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec

from engine.contract import TokenLogprobs
from engine.text import Tokenizer
from gateway.services.inference import Echo, Piece

T = TypeVar("T")


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
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


def token_name(raw: bytes) -> str:
    """Spell a token as text; where it is no whole character, as `bytes:\\xe2\\x9c`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """Spell the log-probabilities of some tokens of a chat."""
    return ChatLogprobs([_encoded(_chat_token(tokenizer, entry)) for entry in logprobs])


def _encoded(value: T) -> T:
    """Return a value as the JSON that it is to become, in place of itself.

    Those of a long answer would all be there at once, and one call would encode megabytes of them
    while nothing else runs.
    """
    return cast(T, msgspec.Raw(msgspec.json.encode(value)))


def _chat_token(tokenizer: Tokenizer, entry: TokenLogprobs) -> TokenLogprob:
    raw = tokenizer.token_bytes(entry.token_id)
    top = []
    for token_id, logprob in entry.top:
        other = tokenizer.token_bytes(token_id)
        top.append(TopLogprob(token_name(other), logprob, list(other)))
    return TokenLogprob(token_name(raw), entry.logprob, list(raw), top)


class TextLogprobsWriter:
    """Spell the log-probabilities of one completion as it grows; offsets count characters."""

    def __init__(self, tokenizer: Tokenizer, echo: Echo | None) -> None:
        self._tokenizer = tokenizer
        self._echo = echo
        self._offset = 0

    def write(self, piece: Piece) -> TextLogprobs:
        """Spell what a piece brings; with an echo, the first one's prompt too."""
        spelled = TextLogprobs()
        if self._echo is not None:
            echo, self._echo = self._echo, None
            entries = piece.prompt_logprobs or [None] * len(echo.token_ids)
            for token_id, entry in zip(echo.token_ids, entries, strict=True):
                self._add(spelled, token_id, entry)
        # The end token too: evaluations drop the last entry, which must not be one of the text.
        for entry in (*piece.logprobs, *piece.end_logprobs):
            self._add(spelled, entry.token_id, entry)
        return spelled

    def _add(self, spelled: TextLogprobs, token_id: int, entry: TokenLogprobs | None) -> None:
        name = self._name(token_id)
        spelled.tokens.append(name)
        spelled.text_offset.append(self._offset)
        self._offset += len(name)
        if entry is None:
            spelled.token_logprobs.append(None)
            spelled.top_logprobs.append(None)
            return
        top = {self._name(other): logprob for other, logprob in entry.top}
        # The chosen token is listed even where others are likelier, as OpenAI's endpoint has it.
        top.setdefault(name, entry.logprob)
        spelled.token_logprobs.append(entry.logprob)
        spelled.top_logprobs.append(_encoded(top))

    def _name(self, token_id: int) -> str:
        return token_name(self._tokenizer.token_bytes(token_id))
