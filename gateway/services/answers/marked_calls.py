"""Calls in a text, each behind a marker; the text around them is held where it may open one.

Spaces around calls are no text. A block behind a marker that turns out to be no call is text as it
stands, marker and all. However a text is cut into pieces, the events are the same but for where
text and arguments are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.services.answers.events import Event, Text
from gateway.services.answers.up_to_marker import UpToMarker


class Block(Protocol):
    """Read what stands behind a marker: one call, or several.

    It `is_over` where it ends; `rest` came behind it. If it `is_refused` it was no call, and `rest`
    is all of it.
    """

    @property
    def is_over(self) -> bool: ...
    @property
    def is_refused(self) -> bool: ...
    @property
    def rest(self) -> str: ...
    def push(self, text: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


class MarkedCalls:
    """Read a text with calls: `push` its pieces, then `finish` once.

    With `opens_with` a text that begins with that is a block without a marker.
    """

    def __init__(
        self, marker: str, make_block: Callable[[], Block], *, opens_with: str | None = None
    ) -> None:
        self._before = UpToMarker(marker)
        self._make_block = make_block
        self._opens_with = opens_with
        self._block: Block | None = None
        self._opening = ""
        self._skips_spaces = False

    def push(self, text: str) -> list[Event]:
        """Return what the text adds."""
        events: list[Event] = []
        while text:
            step = self._outside if self._block is None else self._inside
            text = step(text, events)
        return events

    def finish(self) -> list[Event]:
        """Return what was held."""
        events: list[Event] = []
        if self._block is not None:
            events += self._block.finish()
            rest = self._block.rest
            text = self._opening + rest if self._block.is_refused else rest.strip()
        else:
            text = self._before.take()
        if text:
            events.append(Text(text))
        self._block = None
        return events

    def _outside(self, text: str, events: list[Event]) -> str:
        """Read text up to a marker; return what is behind it."""
        if self._skips_spaces:
            text = text.lstrip()
            if not text:
                return ""
            self._skips_spaces = False
        if self._opens_with is not None:
            bare = text.lstrip()
            if bare.startswith(self._opens_with):
                return self._open(self._before.take() + text[: -len(bare)], bare)
            if bare:
                self._opens_with = None
        said, behind = self._before.push(text)
        if said:
            events.append(Text(said))
        return "" if behind is None else self._open(self._before.opening, behind)

    def _open(self, opening: str, rest: str) -> str:
        self._opens_with = None
        self._opening, self._block = opening, self._make_block()
        return rest

    def _inside(self, text: str, events: list[Event]) -> str:
        """Read on in a block; return what is behind it."""
        block = self._block
        assert block is not None
        events += block.push(text)
        if not block.is_over:
            return ""
        self._block = None
        if block.is_refused and self._opening:
            events.append(Text(self._opening))
        self._skips_spaces = not block.is_refused
        return block.rest
