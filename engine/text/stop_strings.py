"""Cut a stream of text at the first stop string, wherever the pieces happen to break.

The text ends as soon as one stop string is complete; if several complete with the same
character, the one that began first counts. That rule does not depend on how the text was cut
into pieces. What might be the beginning of a stop string is held back until it is decided, so
no part of one is ever sent.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Filter one sequence's text: `push` each piece, then `finish` once."""

    __slots__ = ("_held", "_stopped", "_stops", "met")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """`met` is the stop string that ended the text. Raises: `ValueError`: one is empty."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self._stopped = False
        self.met: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Return what may be sent now, and whether a stop string has been met."""
        if not self._stops:
            return text, False
        if self._stopped:
            return "", True
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._stopped, self._held = True, ""
            end, start = min(found)
            self.met = text[start:end]
            return text[:start], True
        cut = min(undecided_from(text, stop) for stop in self._stops)
        self._held = text[cut:]
        return text[:cut], False

    def finish(self) -> str:
        """Return what was held back; the text ended before it became a stop string."""
        held, self._held = self._held, ""
        return held


def undecided_from(text: str, stop: str) -> int:
    """Find where the longest end of `text` begins that `stop` begins with; its length if none."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return at if at >= 0 else len(text)
