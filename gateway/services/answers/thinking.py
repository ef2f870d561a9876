"""Telling what a model thinks from what it says, by the tags `<think>` and `</think>`.

Where it begins is told by the prompt's end: a template may have opened the tag, or closed it at
once to have no thinking. Else a text that begins with the tag is thinking. Line ends at the tags
belong to neither side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.services.answers.up_to_marker import UpToMarker

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
        # What may open the tag, and the spaces before it as the pieces they came in: they may go
        # on for a whole answer.
        self._spaces: list[str] = []
        self._begun = ""
        self._closing = UpToMarker(CLOSING, spaces="\n")
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
        if self.is_undecided:
            held = "".join([*self._spaces, self._begun])
            self._spaces, self._begun = [], ""
        else:
            held = self._closing.take()
        return [(self.is_thinking, held)] if held else []

    def _undecided(self, text: str) -> list[Part]:
        if not self._begun:
            bare = text.lstrip()
            self._spaces.append(text[: len(text) - len(bare)])
            text = bare
        self._begun += text
        if OPENING.startswith(self._begun) and self._begun != OPENING:
            return []
        begun, self._begun = self._begun, ""
        if not begun.startswith(OPENING):
            self._read, self._skips_ends = self._said, False
            return [(False, "".join([*self._spaces, begun]))]
        self._read = self._thought
        return self._thought(begun.removeprefix(OPENING))

    def _thought(self, text: str) -> list[Part]:
        thought, behind = self._closing.push(self._without_ends(text))
        parts = [(True, thought)] if thought else []
        if behind is None:
            return parts
        self._read, self._skips_ends = self._said, True
        return parts + self._said(behind)

    def _said(self, text: str) -> list[Part]:
        text = self._without_ends(text)
        return [(False, text)] if text else []

    def _without_ends(self, text: str) -> str:
        """Drop line ends behind a tag."""
        if self._skips_ends:
            text = text.lstrip("\n")
            self._skips_ends = not text
        return text
