"""The items of an answer, built as it comes."""

from __future__ import annotations

import time

from gateway.api.responses.output_items import OutputItems
from gateway.api.responses.schemas import OutputMessage
from gateway.services.answers import Text


def text_of(*pieces: str) -> str:
    """The text of an answer that came in these pieces."""
    items = OutputItems("0" * 32)
    for piece in pieces:
        items.add([Text(piece)])
    items.finish("stop")
    [item] = items.items
    assert isinstance(item, OutputMessage)
    return item.content[0].text


def test_an_answer_has_the_spaces_that_it_begins_with() -> None:
    """Also where it has nothing else."""
    assert text_of("\n", " ", "Yes", " ") == "\n Yes "
    assert text_of("\n", " ") == "\n "


def cpu_s_of(num_pieces: int) -> float:
    """How long it takes to build an answer that begins with so many pieces of spaces."""
    began_s = time.thread_time()
    text = text_of(*["\n" * 16] * num_pieces, "Yes")
    took_s = time.thread_time() - began_s
    assert text == "\n" * 16 * num_pieces + "Yes"
    return took_s


def test_spaces_that_an_answer_begins_with_cost_what_their_pieces_do() -> None:
    """They are held until something is said, and not joined anew with each."""
    few_s = min(cpu_s_of(500) for _ in range(3))
    assert cpu_s_of(8000) < 60 * few_s
