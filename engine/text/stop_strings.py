"""Cut a stream of text at the first stop string, wherever the pieces happen to break.

The text ends as soon as one stop string is complete; if several complete with the same
character, the one that began first counts. That rule does not depend on how the text was cut
into pieces. What might be the beginning of a stop string is held back until it is decided, so
no part of one is ever sent.

What a piece costs grows with its own length and the number of stop strings, whatever is held and
however they repeat themselves: clients choose them, and it is paid for each token.

Source: Knuth, Morris and Pratt, Fast Pattern Matching in Strings, SIAM J. Comput. 6 (1977).
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Filter one sequence's text: `push` each piece, and `finish` where a text ends."""

    __slots__ = ("_held", "_stopped", "_stops", "met")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """`met` is the stop string that ended the text. Raises: `ValueError`: one is empty."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = [_Stop(stop) for stop in stops]
        self._held = ""
        self._stopped = False
        self.met: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Return what may be sent now, and whether a stop string has been met."""
        if not self._stops:
            return text, False
        if self._stopped:
            return "", True
        num_before = len(self._held)
        ends = [(stop.end_in(text), stop.text) for stop in self._stops]
        text = self._held + text
        found = [(end, num_before + end - len(stop), stop) for end, stop in ends if end]
        if found:
            self._stopped, self._held = True, ""
            _, start, self.met = min(found)
            return text[:start], True
        cut = len(text) - max(stop.num_met for stop in self._stops)
        self._held = text[cut:]
        return text[:cut], False

    def finish(self) -> str:
        """Return what was held back: the text ended here, and what may come begins another."""
        held, self._held = self._held, ""
        for stop in self._stops:
            stop.num_met = 0
        return held


class _Stop:
    """Follow how much of one stop string the text ends with: `num_met` characters."""

    __slots__ = ("_borders", "num_met", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_met = 0
        # Of each beginning that was met, how many of its own first characters it ends with.
        self._borders = [0]

    def end_in(self, piece: str) -> int:
        """Go on with a piece; return how much of it the text ends behind, 0 where it goes on."""
        stop, num_met, at = self.text, self.num_met, 0
        while at < len(piece):
            if not num_met:
                # As nearly all text is none of it.
                at = piece.find(stop[0], at)
                if at < 0:
                    break
            num_met = self._next(num_met, piece[at])
            at += 1
            if num_met == len(stop):
                return at
        self.num_met = num_met
        return 0

    def _next(self, num_met: int, char: str) -> int:
        """Return how much is met with one more character of the text."""
        stop, borders = self.text, self._borders
        while num_met and stop[num_met] != char:
            num_met = borders[num_met - 1]
        if stop[num_met] == char:
            num_met += 1
        if num_met > len(borders):
            borders.append(self._next(borders[-1], char))
        return num_met


def undecided_from(text: str, stop: str) -> int:
    """Find where the longest end of `text` begins that `stop` begins with; its length if none.

    For a `stop` that no client chose: of one that repeats itself it takes the square of its length.
    """
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return at if at >= 0 else len(text)
