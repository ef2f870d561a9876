"""Ids of responses, `resp_` and 32 hexadecimal digits, and of what is in them.

Those of items follow from the response's: they are the same streamed, whole and read again.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from gateway.errors import ResponseNotFound

PREFIX: Final = "resp_"
RESPONSE_ID: Final = "^resp_[0-9a-f]{32}$"
_RESPONSE: Final = re.compile(r"resp_([0-9a-f]{32})", re.ASCII)
# Beyond the number of items that an answer can have.
_FIRST_INPUT: Final = 1 << 20


def read_response_id(text: str, *, param: str = "response_id", code: str | None = None) -> UUID:
    """Read a response's id. Raises: `ResponseNotFound`: no response has such a one."""
    if match := _RESPONSE.fullmatch(text):
        return UUID(match[1])
    raise ResponseNotFound(param=param, code=code)


def response_name(response_id: UUID) -> str:
    """Write a response's id."""
    return f"{PREFIX}{response_id.hex}"


def output_name(kind: str, request_id: str, index: int) -> str:
    """Name an item of an answer: `kind` is msg, fc or rs, `request_id` of 32 digits."""
    return f"{kind}_{request_id}{index:06x}"


def input_name(kind: str, request_id: str, index: int) -> str:
    """Name an item that was sent."""
    return f"{kind}_{request_id}{_FIRST_INPUT + index:06x}"
