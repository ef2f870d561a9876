"""Gathering an answer: what a piece costs, and what is gathered of it."""

from __future__ import annotations

from gateway.api.openai.answer import Gathering
from gateway.services.answers import CallArguments, CallEnd, CallStart, Event, Text
from gateway.services.inference import Piece
from tests.counted_lines import num_lines


def call(number: int) -> list[Event]:
    """Return a whole call's events."""
    return [CallStart(number, f"call_{number}", "f"), CallArguments(number, "{}"), CallEnd(number)]


def gathered(num_calls: int) -> Gathering:
    """Gather an answer of calls, an event a token."""
    gathering = Gathering()
    for number in range(num_calls):
        for event in call(number):
            gathering.add(Piece("x", events=[event]))
    return gathering


def test_a_token_costs_no_more_behind_thousands_of_calls() -> None:
    """Whatever was called before, the next twenty tokens are added in a few lines."""
    gathering, next_call = gathered(2000), call(2000)

    def add_twenty() -> None:
        for _ in range(20):
            gathering.add(Piece("x", events=[next_call[1]]))

    assert num_lines(add_twenty) < 20 * 40


def test_of_many_calls_and_a_long_text_each_is_there_once() -> None:
    """Joined on the way or at the end, an answer is its calls and one text in their order."""
    gathering = gathered(700)
    for _ in range(3000):
        gathering.add(Piece("y", events=[Text("y")]))
    gathering.add(Piece("", "stop", events=[]))
    whole = gathering.whole().events
    assert list(whole) == [
        *(event for number in range(700) for event in call(number)),
        Text("y" * 3000),
    ]
