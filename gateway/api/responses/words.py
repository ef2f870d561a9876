"""Saying in the words of Responses what the readers of chats have found wrong or without effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gateway.api.openai.reading import Ignored
from gateway.errors import InvalidRequest

_WORDS: Final = (
    (re.compile(r"\bresponse_format\.json_schema\b"), "text.format"),
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\bmax_tokens\b"), "max_output_tokens"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\b(tools(?:\[\d+\])?)\.function\b"), r"\1"),
    (re.compile(r"\btool_choice\.allowed_tools\b"), "tool_choice"),
)


class OwnWords(Ignored):
    """Pass on the names of what had no effect."""

    def __init__(self, ignored: Ignored) -> None:
        super().__init__()
        self._passed_to = ignored

    def add(self, name: str) -> None:
        self._passed_to.add(_in_own(name))


@contextmanager
def in_own_words() -> Iterator[None]:
    """Rename what a refusal names. Raises: the same `InvalidRequest`."""
    try:
        yield
    except InvalidRequest as exc:
        exc.message = _in_own(exc.message)
        exc.param = None if exc.param is None else _in_own(exc.param)
        raise


def _in_own(text: str) -> str:
    for theirs, ours in _WORDS:
        text = theirs.sub(ours, text)
    return text
