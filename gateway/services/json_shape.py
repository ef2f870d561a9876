"""How deep a JSON text is and how much it holds, judged before anything is built of it.

A decoder makes an object of every value, so four megabytes of `[1],[1],…` are a million lists and
most of a second in which nothing else of the process runs; one megabyte of `1e300,1e300,…` is two
seconds and more. What no request needs is refused from the bytes alone, by passes that each run at
the speed of memory.

A text that is no JSON is left to the decoder: it stops where the text goes wrong, and up to there
both count the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from gateway.errors import InvalidRequest

MAX_JSON_DEPTH: Final = 32
# Room for 128 prompts of 2,000 token ids, 1,024 messages of several parts, and large tool schemas.
MAX_JSON_VALUES: Final = 1 << 18
MAX_JSON_STRINGS: Final = 1 << 16
MAX_JSON_CONTAINERS: Final = 1 << 14
# Biases and bounds; token ids are none.
MAX_JSON_FRACTIONS: Final = 512
MAX_JSON_DIGITS: Final = 1024
# Of a body that is decoded where it stands: too short for a number that takes long.
_SHORT_BYTES: Final = 32 << 10
_PART_BYTES: Final = 128 << 10

_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_IN_NUMBERS: Final = bytes(0x30 if byte in b"0123456789.eE+-" else 0x20 for byte in range(256))
_WORD_BYTES: Final = b"0123456789.+-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TOO_LONG: Final = b"0" * (MAX_JSON_DIGITS + 1)
_STEP: Final = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


def check_shape(body: bytes, *, around: int = 0) -> None:
    """Refuse a text that is too deep, holds too much, or numbers that take long to read.

    It is that of a body, with so many levels `around` it. Raises: `InvalidRequest`.
    """
    max_depth = MAX_JSON_DEPTH + around
    if (
        len(body) <= _SHORT_BYTES
        and body.count(b"[") + body.count(b"{") <= max_depth
        and body.count(b",") < MAX_JSON_FRACTIONS
    ):
        # As most are; what stands in strings was counted too, so that no text had to be told apart.
        return
    shape = _Shape(max_depth)
    for part in _without_escapes(body):
        shape.add(part)
    shape.end()


class _Shape:
    """Count what comes part by part, so that a text is refused as soon as it holds too much."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._is_in_string = False
        self._word = b""  # the last one outside of strings, which may go on in the next part
        self._num_quotes = self._num_commas = self._num_fractions = 0
        self._num_containers = self._depth = 0

    def add(self, part: bytes) -> None:
        """Count a part that has no escapes left. Raises: `InvalidRequest`."""
        pieces = part.split(b'"')
        outside = pieces[self._is_in_string :: 2]
        num_quotes = len(pieces) - 1
        self._is_in_string ^= num_quotes % 2 == 1
        self._num_quotes += num_quotes
        if self._num_quotes > 2 * MAX_JSON_STRINGS:
            raise _too_much("strings", MAX_JSON_STRINGS)
        text = self._word + b"".join(outside)
        whole = text.rstrip(_WORD_BYTES)
        self._word = text[len(whole) :]
        if len(self._word) > MAX_JSON_DIGITS:
            raise _too_long()
        self._count(whole)

    def end(self) -> None:
        """Count what the last part ended with. Raises: `InvalidRequest`."""
        self._count(self._word)

    def _count(self, text: bytes) -> None:
        self._num_commas += text.count(b",")
        if self._num_commas > MAX_JSON_VALUES:
            raise _too_much("values", MAX_JSON_VALUES)
        # Most numbers are read in 30 ns; `1e300` takes 15 µs, and a long one 25 ns a digit.
        num_es = text.count(b"e") + text.count(b"E") - text.count(b"true") - text.count(b"false")
        self._num_fractions += num_es + text.count(b".")
        if self._num_fractions > MAX_JSON_FRACTIONS:
            raise _too_much("numbers with a fraction or an exponent", MAX_JSON_FRACTIONS)
        if _TOO_LONG in text.translate(_IN_NUMBERS):
            raise _too_long()
        brackets = text.translate(None, _NOT_BRACKETS)
        self._num_containers += brackets.count(b"[") + brackets.count(b"{")
        if self._num_containers > MAX_JSON_CONTAINERS:
            raise _too_much("lists and objects", MAX_JSON_CONTAINERS)
        steps = map(_STEP.__getitem__, brackets[: 4 * MAX_JSON_CONTAINERS])
        depths = list(accumulate(steps, initial=self._depth))
        if max(depths) > self._max_depth:
            raise InvalidRequest("The body is nested too deeply.", code="invalid_json")
        self._depth = depths[-1]


def _without_escapes(body: bytes) -> Iterator[bytes]:
    """Take `\\\\` and `\\"` out, a part at a time, so that no call takes long.

    From the left, as a decoder reads them; what the last of an odd number of backslashes escapes
    is in the next part.
    """
    rest = b""
    for start in range(0, len(body), _PART_BYTES):
        part = rest + body[start : start + _PART_BYTES]
        if b"\\" not in part:
            yield part
            rest = b""
            continue
        is_cut = (len(part) - len(part.rstrip(b"\\"))) % 2
        part, rest = (part[:-1], part[-1:]) if is_cut else (part, b"")
        yield part.replace(b"\\\\", b"").replace(b'\\"', b"")


def _too_long() -> InvalidRequest:
    text = f"A number in the body has more than {MAX_JSON_DIGITS:,} digits."
    return InvalidRequest(text, code="invalid_json")


def _too_much(what: str, bound: int) -> InvalidRequest:
    return InvalidRequest(f"The body holds more than {bound:,} {what}.", code="invalid_json")
