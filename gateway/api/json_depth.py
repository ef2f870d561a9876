"""How deeply a JSON text is nested, judged before anything is decoded."""

from __future__ import annotations

import re
from typing import Final

from gateway.errors import InvalidRequest

MAX_JSON_DEPTH: Final = 32

# A string, whose brackets do not count, or a bracket. Nothing is tried twice, however long.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def check_depth(body: bytes) -> None:
    """Refuse a body that is nested deeper than 32. Raises: `InvalidRequest`.

    One with no more brackets than that, as most are, is not looked through.
    """
    if body.count(b"[") + body.count(b"{") <= MAX_JSON_DEPTH:
        return
    depth = 0
    for token in _TOKEN.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise InvalidRequest("The body is nested too deeply.", code="invalid_json")
        elif first in b"]}":
            depth -= 1
