"""How the tokens of a model are spelled in log-probabilities, each put into JSON once.

An answer may name a million tokens, of a few thousand that there are. Spelled anew each time they
would keep the interpreter from whoever computes and serves meanwhile for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from engine.contract import TokenLogprobs
from engine.text import Tokenizer

# Some 300 bytes each; beyond, all are forgotten.
_MAX_KEPT: Final = 1 << 16


class _Token(NamedTuple):
    name: str
    key: bytes  # the name in JSON
    before: bytes  # a chat's object up to the log-probability
    after: bytes  # and from there to its last member
    num_chars: int  # how many characters of the text begin in it
    is_inside: bool  # whether it goes on with one that has begun


class SpelledTokens:
    """Spell the tokens of one tokenizer; shared by all threads, which only ever add equal ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._special_id_of = tokenizer.special_id_of
        self._kept: dict[int, _Token] = {}

    def name(self, token_id: int) -> str:
        """Spell a token as text; where it is no whole character, as `bytes:\\xe2\\x9c`."""
        return self._token(token_id).name

    def offsets(self, token_ids: Iterable[int], begin: int, text: str = "") -> list[int]:
        """Say where in a text each token begins, the first at `begin`, and last where they end.

        One that goes on with a character begins where that does. Special tokens are in a text only
        where they are found in `text`.
        """
        offsets = []
        for token in map(self._token, token_ids):
            offsets.append(max(0, begin - token.is_inside))
            begin += token.num_chars
            is_special = not (token.num_chars or token.is_inside)
            if is_special and text.startswith(token.name, begin):
                begin += len(token.name)
        return [*offsets, begin]

    def chat(self, scored: TokenLogprobs) -> msgspec.Raw:
        """Write what a chat says of a token: `TokenLogprob`."""
        token, (number, *numbers) = self._token(scored.token_id), _numbers(scored)
        others = zip(map(self._token, scored.top_ids), numbers, strict=True)
        top = b",".join([b"%b%b%b}" % (other.before, n, other.after) for other, n in others])
        return msgspec.Raw(
            b'%b%b%b,"top_logprobs":[%b]}' % (token.before, number, token.after, top)
        )

    def text(self, scored: TokenLogprobs) -> msgspec.Raw:
        """Write the likeliest tokens by name, as a completion does, the chosen one among them."""
        number, *numbers = _numbers(scored)
        keys = [self._token(token_id).key for token_id in scored.top_ids]
        top = dict(zip(keys, numbers, strict=True))
        # Listed even where others are likelier, as OpenAI's endpoint has it.
        top.setdefault(self._token(scored.token_id).key, number)
        return msgspec.Raw(b"{%b}" % b",".join([b"%b:%b" % item for item in top.items()]))

    def _token(self, token_id: int) -> _Token:
        token = self._kept.get(token_id)
        if token is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            token = _spell(self._bytes_of(token_id))
            if self._special_id_of(token.name) == token_id:
                token = token._replace(num_chars=0)
            self._kept[token_id] = token
        return token


_known: WeakKeyDictionary[Tokenizer, SpelledTokens] = WeakKeyDictionary()


def spelled_tokens(tokenizer: Tokenizer) -> SpelledTokens:
    """Return what is known of a tokenizer's tokens."""
    found = _known.get(tokenizer)
    return found if found is not None else _known.setdefault(tokenizer, SpelledTokens(tokenizer))


def _spell(raw: bytes) -> _Token:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    key, numbers = msgspec.json.encode(name), msgspec.json.encode(list(raw))
    goes_on = [byte & 0xC0 == 0x80 for byte in raw]
    return _Token(
        name,
        key,
        before=b'{"token":%b,"logprob":' % key,
        after=b',"bytes":%b' % numbers,
        num_chars=goes_on.count(False),
        is_inside=goes_on[:1] == [True],
    )


def _numbers(scored: TokenLogprobs) -> list[bytes]:
    """Spell a token's log-probability and those of the likeliest, in one call."""
    return msgspec.json.encode([scored.logprob, *scored.top_logprobs])[1:-1].split(b",")
