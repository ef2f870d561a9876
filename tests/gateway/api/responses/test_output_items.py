"""The items of an answer, built as it comes."""

from __future__ import annotations

import time

from gateway.api.responses.output_items import OutputItems
from gateway.api.responses.schemas import OutputMessage
from gateway.services.answers import Text


def cpu_s_of(num_pieces: int) -> float:
    """How long it takes to build an answer that begins with so many pieces of spaces."""
    items = OutputItems("0" * 32)
    began_s = time.thread_time()
    for _ in range(num_pieces):
        items.add([Text("\n" * 16)])
    items.add([Text("Yes")])
    items.finish("stop")
    took_s = time.thread_time() - began_s
    [item] = items.items
    assert isinstance(item, OutputMessage)
    assert item.content[0].text == "\n" * 16 * num_pieces + "Yes"
    return took_s


def test_spaces_that_an_answer_begins_with_cost_what_their_pieces_do() -> None:
    """They are held until something is said, and not joined anew with each."""
    few_s = min(cpu_s_of(500) for _ in range(3))
    assert cpu_s_of(8000) < 60 * few_s
