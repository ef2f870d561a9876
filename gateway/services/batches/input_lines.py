"""A batch's input as it is read: lines with their places in the file, none longer than a bound.

A byte order mark is skipped, as are blank lines; lines end with LF or CRLF, the last one with the
file. What is too long is passed over up to its end, and never held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gateway.services.batches.item_line import MAX_LINE_BYTES

_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r"


class RawLine(NamedTuple):
    """Hold a line, counted from 1, without what ends it; None: it was too long."""

    line: int
    offset_bytes: int
    text: bytes | None


class InputLines:
    """Cut chunks of a file into lines."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._held = bytearray()
        self._size_bytes = 0
        self._starts_at = 0
        self.num_lines = 0

    def feed(self, chunk: bytes) -> Iterator[RawLine]:
        """Return the lines that end in a chunk, but for blank ones."""
        *ends, rest = chunk.split(b"\n")
        for part in ends:
            if self._size_bytes or len(part) > self._max_line_bytes:
                self._hold(part)
                yield from self.end()
            else:
                self._size_bytes = len(part)
                yield from self._ended(part)
            self._starts_at += 1
        self._hold(rest)

    def end(self) -> Iterable[RawLine]:
        """Return the line that was read so far as one that ends here."""
        held = None if self._size_bytes > self._max_line_bytes else bytes(self._held)
        self._held.clear()
        return self._ended(held)

    def _ended(self, held: bytes | None) -> tuple[RawLine] | tuple[()]:
        self.num_lines += 1
        starts_at = self._starts_at
        self._starts_at += self._size_bytes
        self._size_bytes = 0
        if held is None:
            return (RawLine(self.num_lines, starts_at, None),)
        if starts_at == 0 and held.startswith(_BOM):
            held, starts_at = held[len(_BOM) :], len(_BOM)
        text = held.strip(_BLANK)
        if not text:
            return ()
        num_before = 0 if len(text) == len(held) else len(held) - len(held.lstrip(_BLANK))
        return (RawLine(self.num_lines, starts_at + num_before, text),)

    def _hold(self, part: bytes) -> None:
        """Add to the line that is being read; one that is too long is only measured."""
        self._size_bytes += len(part)
        if self._size_bytes > self._max_line_bytes:
            self._held.clear()
        else:
            self._held += part
