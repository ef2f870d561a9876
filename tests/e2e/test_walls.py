"""One tenant's bodies do not stop the event loop for another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live_server import Server
from tests.passable import passable_directory
from tests.soak import walls


@pytest.fixture(scope="module")
def quick_server() -> Iterator[Server]:
    """Serve a model that makes long answers in seconds."""
    with passable_directory() as directory, walls.quick_model(directory) as server:
        yield server


def test_a_million_lists_hold_nobody_up(quick_server: Server) -> None:
    """Beside 4 MiB of lists nobody else is refused, and the event loop goes on."""
    beside = walls.press(quick_server, walls.Attack(kind="lists", connections=2, for_s=1))
    assert set(beside.victim_statuses) == {"200"}
    assert beside.held_s < 1


def test_long_answers_hold_nobody_up(quick_server: Server) -> None:
    """Beside three answers of 11 MB nobody else is refused, and the event loop goes on."""
    walls.until_calm(quick_server)
    asked = walls.Attack(kind="logprobs", connections=3, for_s=0.2)
    beside = walls.press(quick_server, asked)
    assert beside.attacker_statuses == {"logprobs": {"200": 3}}
    assert set(beside.victim_statuses) == {"200"}
    assert beside.held_s < 1
