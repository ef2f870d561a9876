"""How deep a JSON text is and how much it holds, judged before anything is built of it.

A decoder makes an object of every value, so four megabytes of `[1],[1],…` are a million lists and
most of a second in which nothing else of the process runs. What no request needs is refused from
the bytes alone, by passes that each run at the speed of memory.

A text that is no JSON is left to the decoder: it stops where the text goes wrong, and up to there
both count the same.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from gateway.errors import InvalidRequest

MAX_JSON_DEPTH: Final = 32
# Room for 128 prompts of 2,000 token ids, 1,024 messages of several parts, and large tool schemas.
MAX_JSON_VALUES: Final = 1 << 18
MAX_JSON_STRINGS: Final = 1 << 16
MAX_JSON_CONTAINERS: Final = 1 << 14

_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEP: Final = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}


def check_shape(body: bytes) -> None:
    """Refuse a text that is too deep or holds too many values, strings or containers.

    Raises: `InvalidRequest`.
    """
    num_brackets = body.count(b"[") + body.count(b"{")
    if num_brackets <= MAX_JSON_DEPTH and _may_hold(body.count(b'"'), body.count(b",")):
        # As most are; what stands in strings was counted too, so that no text had to be told apart.
        return
    bare = body
    if b"\\" in body:
        # From the left, as a decoder reads them: what is left of `\\"` is a quote, of `\"` nothing.
        bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_quotes = bare.count(b'"')
    if not _may_hold(num_quotes, 0):
        raise _too_much("strings", MAX_JSON_STRINGS)
    outside = b"".join(bare.split(b'"')[::2])
    if not _may_hold(num_quotes, outside.count(b",")):
        raise _too_much("values", MAX_JSON_VALUES)
    brackets = outside.translate(None, _NOT_BRACKETS)
    if brackets.count(b"[") + brackets.count(b"{") > MAX_JSON_CONTAINERS:
        raise _too_much("lists and objects", MAX_JSON_CONTAINERS)
    if max(accumulate(map(_STEP.__getitem__, brackets[: 2 * MAX_JSON_CONTAINERS])), default=0) > (
        MAX_JSON_DEPTH
    ):
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json")


def _may_hold(num_quotes: int, num_commas: int) -> bool:
    return num_quotes <= 2 * MAX_JSON_STRINGS and num_commas <= MAX_JSON_VALUES


def _too_much(what: str, bound: int) -> InvalidRequest:
    return InvalidRequest(f"The body holds more than {bound:,} {what}.", code="invalid_json")
