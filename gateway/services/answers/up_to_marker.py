"""Reading a text up to a marker, with the spaces before it held back.

How much a piece costs does not grow with what is held: spaces may go on for a whole answer, and
are kept as the pieces they came in until something else follows.
"""

from __future__ import annotations

from engine.text import undecided_from


class UpToMarker:
    """Hold back of a text what may open its marker, and the spaces before that: `push` pieces.

    `spaces` are their characters; None: all that Unicode has. Once the marker has come, `opening`
    is it with the spaces before it.
    """

    def __init__(self, marker: str, spaces: str | None = None) -> None:
        self._marker = marker
        self._strip = spaces
        self._run: list[str] = []
        self._begun = ""
        self.opening = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Return what is said before the marker, and what is behind it; None: it has not come."""
        if not self._begun and not text.strip(self._strip):
            self._run.append(text)
            return "", None
        text = self.take() + text
        at = text.find(self._marker)
        end = undecided_from(text, self._marker) if at < 0 else at
        said = text[:end].rstrip(self._strip)
        if at < 0:
            self._run, self._begun = [text[len(said) : end]], text[end:]
            return said, None
        behind = at + len(self._marker)
        self.opening = text[len(said) : behind]
        return said, text[behind:]

    def take(self) -> str:
        """Return what is held, and hold it no longer."""
        held = "".join([*self._run, self._begun])
        self._run, self._begun = [], ""
        return held
