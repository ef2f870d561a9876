"""Parts that are stated while they are measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler.bench.part import Part, grow
from scheduler.bench.report import Figure


def test_part_that_is_returned_is_whole() -> None:
    """What is measured in one piece comes once."""
    part = Part()
    assert list(grow(part)) == [part]
    assert part.complete


def test_part_is_whole_at_its_end_alone() -> None:
    """What is measured in pieces comes after each, and again when nothing is missing."""

    def measured() -> Iterator[Part]:
        part = Part()
        for number in range(2):
            part.figures[str(number)] = Figure(number, "s")
            yield part

    states = [(list(part.figures), part.complete) for part in grow(measured())]
    assert states == [(["0"], False), (["0", "1"], False), (["0", "1"], True)]


def test_part_that_breaks_is_never_whole() -> None:
    """An error in the middle comes through, and what was stated before stays unfinished."""

    def measured() -> Iterator[Part]:
        yield Part()
        raise RuntimeError("no memory")

    parts = grow(measured())
    part = next(parts)
    with pytest.raises(RuntimeError, match="no memory"):
        next(parts)
    assert not part.complete
