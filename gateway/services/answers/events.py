"""What happens in an answer, in order: the one form that every API renders.

A text is read once, as it is generated; chat completions, Anthropic's messages and OpenAI's
responses write the same events down in shapes of their own. What was used is no event: a
`Generation` counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Add to what is said to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Add to what the model thinks before it speaks."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Begin a call: its whole name, once, and an id that is unique. `index` counts from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Add to a call's arguments, as the model wrote them: all together JSON, if it did well."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """End a call; what was begun is ended, also where the answer was cut off in it."""

    index: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End the answer. `reason` is the engine's, `stop` or `length`; `num_calls` were begun."""

    reason: str
    num_calls: int


Event: TypeAlias = Text | Reasoning | CallStart | CallArguments | CallEnd | Finish
