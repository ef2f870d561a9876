"""Names of files: kept as given as far as that is harmless, and told in headers safely."""

from __future__ import annotations

import unicodedata
from typing import Final
from urllib.parse import quote

MAX_CHARS: Final = 255
# What browsers and HTTP clients write for characters that would end the name.
_ESCAPES: Final = {"%22": '"', "%0D": "\r", "%0A": "\n"}
# What turns the direction of the text around it, so that a name would look like another.
_TURNS: Final = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean_name(given: str) -> str:
    """Return a name without control characters and turns, its slashes replaced, cut to 255.

    It is one component of a path wherever it is used as such.
    """
    for escaped, character in _ESCAPES.items():
        given = given.replace(escaped, character)
    kept = "".join(
        character
        for character in given[: 4 * MAX_CHARS]
        if unicodedata.category(character) != "Cc" and character not in _TURNS
    )
    name = kept.replace("/", "_").replace("\\", "_").strip()[:MAX_CHARS]
    return "file" if name in ("", ".", "..") else name


def disposition(name: str) -> bytes:
    """Return the `Content-Disposition` of a download: RFC 6266, the name as RFC 8187 has it."""
    plain = "".join(c if " " <= c <= "~" and c not in '"\\%' else "_" for c in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}".encode()
