"""Turn generated token ids into text as they come, never half a character.

What is hard about it: one character may span tokens (a token then holds part of its UTF-8), and
what a token reads as may depend on the token before it (a leading space that the first token of
a text loses). There are two ways through, chosen once per tokenizer:

- *Bytes*, where the decoder is ByteLevel (Llama 3, Qwen, GPT-2): every token is a fixed run of
  bytes, so the text is one incremental UTF-8 decoding of their concatenation. Exact for any ids.
- *Window*, for every other decoder: decode the new tokens behind the last token that was
  written, and drop what that one reads as. Byte-fallback tokens (`<0xC3>`) are taken out first
  and decoded as bytes, because the library turns a whole run of them into U+FFFD as soon as one
  is out of place, which would change text that has already been sent. On runs that are valid
  UTF-8 (all that an encoder makes) both agree.

Both cost a constant a token and hold at most one unfinished character back. Special tokens are
dropped. A `TokenText` is shared by all threads (its caches only ever gain equal entries); a
`Detokenizer` belongs to one sequence.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

import tokenizers

_REPLACEMENT = "�"
# A decoder that we do not know may spread one character over this many tokens at most.
_HELD_TOKENS_MAX = 8
_DECODED_AT_ONCE = 1024
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TokenText:
    """Know what the tokens of one tokenizer read as; make a `Detokenizer` for each sequence.

    Special tokens are dropped, but for those of `spelled`, or of all with `spells_special`: they
    are read as they are spelled.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        spells_special: bool = False,
        spelled: frozenset[str] = frozenset(),
    ) -> None:
        self.backend = backend
        added = backend.get_added_tokens_decoder()
        special = {i: token.content.encode() for i, token in added.items() if token.special}
        shown = {i for i, token in added.items() if spells_special or token.content in spelled}
        self.special_ids = frozenset(special) - shown
        steps = set(_decoder_steps(backend))
        self.byte_level = "ByteLevel" in steps and steps <= {"ByteLevel", "Fuse"}
        known = {i: text if i in shown else b"" for i, text in special.items()}
        self.token_bytes = _TokenBytes(backend, known)
        self.fallback_bytes = _fallback_bytes(backend) if "ByteFallback" in steps else {}
        self._usable_contexts: dict[int, bool] = {}

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode a whole text; equal to what a `Detokenizer` gives in any number of pushes."""
        detokenizer = Detokenizer(self)
        token_ids = iter(token_ids)
        text = []
        # The library keeps the interpreter for as long as a call takes.
        while some := list(islice(token_ids, _DECODED_AT_ONCE)):
            text.append(detokenizer.push(some))
        return "".join(text) + detokenizer.finish()

    def plain(self, token_ids: list[int]) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=False)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a token adds inside a text; a special one, as it is spelled."""
        spelled = self.backend.id_to_token(token_id) or ""
        if token_id in self.special_ids:
            return spelled.encode()
        if self.byte_level:
            return self.token_bytes[token_id]
        if token_id in self.fallback_bytes:
            return self.fallback_bytes[token_id]
        # A first space is lost when such a token is decoded alone.
        return (
            spelled.replace("▁", " ").encode()
            if "▁" in spelled
            else self.plain([token_id]).encode()
        )

    def is_context(self, token_id: int) -> bool:
        """Tell whether tokens behind this one read as inside a text.

        A token that adds no text would leave the next one at the start of the text, where some
        decoders strip a space.
        """
        usable = self._usable_contexts.get(token_id)
        if usable is None:
            usable = self.plain([token_id]) != self.plain([token_id, token_id])
            self._usable_contexts[token_id] = usable
        return usable


class Detokenizer:
    """Decode one sequence: `push` its tokens in any batches, then `finish` once."""

    __slots__ = ("_context", "_context_text", "_held", "_text", "_utf8")

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self._utf8 = _Utf8Decoder("replace")
        self._context: list[int] = []  # the last token that was written
        self._context_text = ""
        self._held: list[int] = []  # plain tokens that end inside a character

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that these tokens complete, possibly none."""
        text = self._text
        if text.byte_level:
            return self._utf8.decode(b"".join(map(text.token_bytes.__getitem__, token_ids)))
        special_ids = text.special_ids
        token_ids = [i for i in token_ids if i not in special_ids]
        fallback = text.fallback_bytes
        if fallback and not (
            fallback.keys().isdisjoint(token_ids) and self._utf8.getstate()[0] == b""
        ):
            return "".join(self._mixed(token_ids))
        return self._plain(token_ids)

    def finish(self) -> str:
        """Return what was held back; an unfinished character reads as U+FFFD."""
        return self._plain([], release=True) + self._cut_character()

    def _mixed(self, token_ids: list[int]) -> Iterator[str]:
        fallback = self._text.fallback_bytes
        plain: list[int] = []
        for token_id in token_ids:
            byte = fallback.get(token_id)
            if byte is None:
                yield self._cut_character()
                plain.append(token_id)
            else:
                yield self._plain(plain, release=True)
                plain = []
                yield self._byte(token_id, byte)
        yield self._plain(plain)

    def _byte(self, token_id: int, byte: bytes) -> str:
        piece = self._utf8.decode(byte)
        if piece:
            if not self._context and piece.isascii():
                piece = self._text.plain([token_id])  # the decoder may strip a first space
            self._set_context(token_id)
        return piece

    def _cut_character(self) -> str:
        piece = self._utf8.decode(b"", True)
        self._utf8.reset()
        return piece

    def _plain(self, token_ids: list[int], *, release: bool = False) -> str:
        token_ids = self._held + token_ids
        self._held = []
        if not token_ids:
            return ""
        decoded = self._text.plain(self._context + token_ids)
        unfinished = decoded.endswith(_REPLACEMENT) and len(token_ids) < _HELD_TOKENS_MAX
        if unfinished and not release:
            self._held = token_ids
            return ""
        piece = decoded[len(self._context_text) :]
        for token_id in reversed(token_ids):
            if self._text.is_context(token_id):
                self._set_context(token_id)
                break
        return piece

    def _set_context(self, token_id: int) -> None:
        self._context = [token_id]
        self._context_text = self._text.plain(self._context)


class _TokenBytes(dict[int, bytes]):
    """Map the ids of a ByteLevel tokenizer to their bytes, filled as ids are met."""

    def __init__(self, backend: tokenizers.Tokenizer, known: Mapping[int, bytes]) -> None:
        super().__init__(known)
        self._backend = backend

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:  # a padded vocabulary: the model may know more ids than the tokenizer
            value = b""
        else:
            try:
                value = bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:  # an added token, written as it is
                value = token.encode()
        self[token_id] = value
        return value


def _byte_level_alphabet() -> dict[str, int]:
    """Give the byte that each letter of a ByteLevel vocabulary stands for.

    Source: GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, the other bytes in
    order for the characters from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTE_OF_CHAR = _byte_level_alphabet()


def _fallback_bytes(backend: tokenizers.Tokenizer) -> dict[int, bytes]:
    tokens = ((byte, backend.token_to_id(f"<0x{byte:02X}>")) for byte in range(256))
    return {token_id: bytes([byte]) for byte, token_id in tokens if token_id is not None}


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[str]:
    # The decoder's own state: serialising the whole tokenizer takes 0.1 s and more.
    decoder = backend.decoder
    return [] if decoder is None else _step_types(json.loads(decoder.__getstate__()))


def _step_types(state: dict[str, object]) -> list[str]:
    children = state.get("decoders")
    if isinstance(children, list):
        return list(chain.from_iterable(_step_types(child) for child in children))
    return [str(state["type"])]
