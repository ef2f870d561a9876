"""Finding where a JSON object ends in a text that comes in pieces."""

from __future__ import annotations

import re
from typing import Final

_OUTSIDE: Final = re.compile(r'["{}\[\]<]')
_INSIDE: Final = re.compile(r'["\\]')


class JsonScan:
    """Count braces and brackets outside of strings; nothing else of JSON is checked.

    Begin before an object with a `depth` of 0, or inside of one with 1. `is_broken` says that it
    ended at a `<`, which stands in JSON's strings alone: what follows is markup.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_string", "is_broken")

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._is_string = False
        self._is_escaped = False
        self.is_broken = False

    def end_in(self, text: str) -> int | None:
        """Return where in the next piece it ends; None: behind it."""
        at = 0
        while True:
            if self._is_escaped:
                if at >= len(text):
                    return None
                at += 1
                self._is_escaped = False
            found = (_INSIDE if self._is_string else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            sign = found[0]
            if self._is_string:
                self._is_escaped = sign == "\\"
                self._is_string = self._is_escaped
            elif sign == '"':
                self._is_string = True
            elif sign == "<":
                self.is_broken = True
                return found.start()
            elif sign in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return at
