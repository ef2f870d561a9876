"""Stop strings: found wherever the pieces break, never sent, nothing else lost."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.text.stop_strings import StopStrings
from tests.counted_lines import num_lines

letters = st.text("ab\n", max_size=30)
stop_lists = st.lists(st.text("ab\n", min_size=1, max_size=7), min_size=1, max_size=4)


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Cut the whole text at the stop that is complete first, the longest one of several."""
    found = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    return (text[: min(found)[1]], True) if found else (text, False)


@given(letters, stop_lists, st.data())
@example("abb", ["abb", "b"], None)
def test_pieces_are_cut_where_the_whole_text_would_be(
    text: str, stops: list[str], data: st.DataObject | None
) -> None:
    """The text that is sent does not depend on how it arrived in pieces."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text))))) if data else [1, 2]
    filter_ = StopStrings(stops)
    sent, stopped = "", False
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece, stopped = filter_.push(text[a:b])
        sent += piece
    sent += filter_.finish()
    assert (sent, stopped) == expected(text, stops)


@given(letters, stop_lists)
def test_only_what_may_begin_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    """Everything that cannot be part of a stop string any more has been sent."""
    filter_ = StopStrings(stops)
    sent = ""
    for char in text:
        piece, stopped = filter_.push(char)
        sent += piece
        if stopped:
            return
    held = text[len(sent) :]
    assert not held or any(stop.startswith(held) for stop in stops)


def test_a_prefix_is_released_when_the_text_goes_another_way() -> None:
    """A held beginning is sent as soon as it can no longer become a stop string."""
    filter_ = StopStrings(["\n\nUser:"])
    assert filter_.push("one\n") == ("one", False)
    assert filter_.push("\nUs") == ("", False)
    assert filter_.push("ually") == ("\n\nUsually", False)


def test_nothing_is_sent_after_the_stop() -> None:
    """Text behind a stop string is dropped, in the same piece and in later ones."""
    filter_ = StopStrings(["END"])
    assert filter_.push("a EN") == ("a ", False)
    assert filter_.push("D b") == ("", True)
    assert filter_.push("c") == ("", True)
    assert filter_.finish() == ""


def test_without_stop_strings_text_passes() -> None:
    """No stop strings: every piece goes through as the object that came."""
    filter_ = StopStrings()
    piece = "anything at all"
    assert filter_.push(piece)[0] is piece
    assert filter_.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    """An empty stop string would end every answer before it began."""
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["x", ""])


@pytest.mark.parametrize("stop", ["ab" + "a" * 254, "aab" * 85 + "a"])
def test_what_a_piece_costs_does_not_grow_with_what_a_stop_string_repeats(stop: str) -> None:
    """A text that nearly is a stop string again and again costs a few lines a character."""
    filter_ = StopStrings(["a" * 255 + "b", *[stop] * 15])
    filter_.push("a" * 512)
    assert num_lines(lambda: filter_.push("a")) < 16 * 40


def test_what_a_text_ended_with_begins_no_stop_string_of_the_next() -> None:
    """What was held back is given out at an end, and is no part of what follows it."""
    stops = StopStrings(["ab"])
    assert stops.push("xa") == ("x", False)
    assert stops.finish() == "a"
    assert stops.push("bc") == ("bc", False)
    assert stops.push("ab") == ("", True)
