"""Reading an answer once, as it is generated: thinking first, then text and calls.

A `Generation` pushes the text of each token, so what is counted and where an answer is ended does
not depend on how many tokens a slow reader finds at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol

from engine.text import StopStrings
from gateway.services.answers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Reasoning,
    Text,
)
from gateway.services.answers.thinking import Thinking


class ReadsCalls(Protocol):
    """Tell calls from text; `marked_calls.MarkedCalls` does."""

    def push(self, text: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


class AnswerReader:
    """Turn one answer's text into events: `push` its pieces, then `finish` once.

    Where it `reads_calls` it looks for `stops` too, which end the text around them: they are not
    looked for in calls, nor in what marks them, nor in what was thought. Where calls `are_forced`
    there is no text: what would be is the beginning of one that was cut off.

    Attributes: `num_reasoning_tokens`, where pieces are tokens, those of the tags included;
    `is_done`: all calls that were wanted have come, or the text has ended, so that the rest need
    not be generated.
    """

    def __init__(
        self,
        *,
        thinking: Thinking | None = None,
        calls: ReadsCalls | None = None,
        is_one_call: bool = False,
        are_forced: bool = False,
        stops: StopStrings | None = None,
    ) -> None:
        self._stops = stops or StopStrings()
        self._thinking = thinking if thinking is not None and not thinking.is_over else None
        self._calls = calls
        self._is_one_call = is_one_call
        self._are_forced = are_forced
        self._num_calls = 0
        self._num_undecided = 0
        self.num_reasoning_tokens = 0
        self.is_done = False

    @property
    def reads_calls(self) -> bool:
        """Tell whether the text may have calls in it."""
        return self._calls is not None

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended the text; None where none did."""
        return self._stops.met

    def push(self, text: str, *, is_token: bool = True, may_stop: bool = True) -> list[Event]:
        """Return what a token's text adds, or what a detokenizer held of the last ones.

        Unless it `may_stop`, no stop string ends it.
        """
        if self._thinking is None:
            return self._spoken(text, may_stop=may_stop)
        if is_token:
            self._count(self._thinking)
        parts = self._thinking.push(text)
        if self._thinking.is_over:
            self._thinking = None
        return self._read(parts, may_stop=may_stop)

    def close(self) -> list[Event]:
        """Return what was held: no more comes."""
        events: list[Event] = []
        if self._thinking is not None:
            events += self._read(self._thinking.finish(), may_stop=True)
        if self._calls is not None and not self.is_done:
            events += self._noted(self._calls.finish(), may_stop=True)
        return events + self._unheld()

    def finish(self, reason: str) -> list[Event]:
        """Return what was held, and the end."""
        return [*self.close(), Finish(reason, self._num_calls)]

    def _count(self, thinking: Thinking) -> None:
        """Count a token that is about to be read."""
        if thinking.is_undecided:
            self._num_undecided += 1
        elif thinking.is_thinking:
            self.num_reasoning_tokens += 1 + self._num_undecided
            self._num_undecided = 0

    def _read(self, parts: list[tuple[bool, str]], *, may_stop: bool) -> list[Event]:
        events: list[Event] = []
        for is_thought, text in parts:
            events += [Reasoning(text)] if is_thought else self._spoken(text, may_stop=may_stop)
        return events

    def _spoken(self, text: str, *, may_stop: bool) -> list[Event]:
        if not text or self.is_done:
            return []
        if self._calls is None:
            return [Text(text)]
        return self._noted(self._calls.push(text), may_stop=may_stop)

    def _noted(self, events: list[Event], *, may_stop: bool) -> list[Event]:
        """Count calls, and drop what comes behind the only one, or behind a stop string."""
        noted: list[Event] = []
        for event in events:
            if isinstance(event, Text) and self._are_forced:
                continue
            if isinstance(event, Text) and may_stop:
                said, self.is_done = self._stops.push(event.text)
                noted += [Text(said)] if said else []
            else:
                if isinstance(event, CallStart):
                    self._num_calls += 1
                    noted += self._unheld()
                noted.append(event)
                self.is_done = isinstance(event, CallEnd) and self._is_one_call
            if self.is_done:
                break
        return noted

    def _unheld(self) -> list[Event]:
        """Return what might have begun a stop string, and did not."""
        text = self._stops.finish()
        return [Text(text)] if text else []


@dataclass(slots=True)
class ReadCall:
    """Hold a whole call; `arguments` is JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ReadAnswer:
    """Hold a whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[ReadCall] = field(default_factory=list)
    finish: Finish | None = None


def merged(events: Iterable[Event]) -> list[Event]:
    """Join what follows each other of one kind: so many tokens are one event."""
    joined: list[Event] = []
    for _, group in groupby(events, _kind):
        some = list(group)
        if len(some) > 1 and isinstance(some[0], Text | Reasoning | CallArguments):
            joined.append(replace(some[0], text="".join(map(_text, some))))
        else:
            joined += some
    return joined


def _text(event: Event) -> str:
    assert isinstance(event, Text | Reasoning | CallArguments)
    return event.text


def _kind(event: Event) -> tuple[type, int]:
    return type(event), getattr(event, "index", 0)


def gathered_answer(events: Iterable[Event]) -> ReadAnswer:
    """Put the events of a whole answer together."""
    answer = ReadAnswer()
    texts, thoughts = [], []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case Text(text):
                texts.append(text)
            case Reasoning(text):
                thoughts.append(text)
            case CallStart(_, call_id, name):
                answer.calls.append(ReadCall(call_id, name))
                arguments.append([])
            case CallArguments(index, fragment):
                arguments[index].append(fragment)
            case Finish():
                answer.finish = event
    answer.text, answer.reasoning = "".join(texts), "".join(thoughts)
    for call, fragments in zip(answer.calls, arguments, strict=True):
        call.arguments = "".join(fragments)
    return answer
