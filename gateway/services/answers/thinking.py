"""Telling what a model thinks from what it says, by the tags `<think>` and `</think>`.

Where it begins is told by the prompt's end: a template may have opened the tag, or closed it at
once to have no thinking. Else a text that begins with the tag is thinking. Line ends at the tags
belong to neither side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.text import undecided_from

OPENING: Final = "<think>"
CLOSING: Final = "</think>"
# So much of a prompt's end tells.
TAIL_CHARS: Final = 64

Part = tuple[bool, str]


def begins_in(prompt_tail: str) -> bool | None:
    """Tell whether an answer begins with thinking; None: the model decides."""
    tail = prompt_tail.rstrip()
    if tail.endswith(OPENING):
        return True
    return False if tail.endswith(CLOSING) else None


class Thinking:
    """Split a text: `push` its pieces, then `finish` once.

    What it returns are parts, each with whether it is thinking. Without the closing tag all is.
    """

    def __init__(self, prompt_tail: str = "") -> None:
        begins = begins_in(prompt_tail)
        self._held = ""
        self._skips_ends = True
        self._read: Callable[[str], list[Part]] = self._undecided
        if begins is not None:
            self._read = self._thought if begins else self._said

    @property
    def is_over(self) -> bool:
        """Tell whether all that comes is said."""
        return self._read == self._said and not self._skips_ends

    @property
    def is_undecided(self) -> bool:
        return self._read == self._undecided

    @property
    def is_thinking(self) -> bool:
        return self._read == self._thought

    def push(self, text: str) -> list[Part]:
        return self._read(text)

    def finish(self) -> list[Part]:
        """Return what was held."""
        held, self._held = self._held, ""
        return [(self._read == self._thought, held)] if held else []

    def _undecided(self, text: str) -> list[Part]:
        self._held += text
        bare = self._held.lstrip()
        if OPENING.startswith(bare) and bare != OPENING:
            return []
        held, self._held = self._held, ""
        if not bare.startswith(OPENING):
            self._read, self._skips_ends = self._said, False
            return [(False, held)]
        self._read = self._thought
        return self._thought(bare.removeprefix(OPENING))

    def _thought(self, text: str) -> list[Part]:
        text, self._held = self._without_ends(self._held + text), ""
        at = text.find(CLOSING)
        end = undecided_from(text, CLOSING) if at < 0 else at
        thought = text[:end].rstrip("\n")
        parts = [(True, thought)] if thought else []
        if at < 0:
            self._held = text[len(thought) :]
            return parts
        self._read, self._skips_ends = self._said, True
        return parts + self._said(text[at + len(CLOSING) :])

    def _said(self, text: str) -> list[Part]:
        text = self._without_ends(text)
        return [(False, text)] if text else []

    def _without_ends(self, text: str) -> str:
        """Drop line ends behind a tag."""
        if self._skips_ends:
            text = text.lstrip("\n")
            self._skips_ends = not text
        return text
