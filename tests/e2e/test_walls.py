"""One tenant's bodies do not stop the event loop for another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.live_server import Server
from tests.passable import passable_directory
from tests.soak import walls
from tests.soak.forms import unique_forms
from tests.soak.hostile_forms import HOSTILE, hostile_beside_streams


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


def test_hostile_forms_hold_nobody_up(quick_server: Server) -> None:
    """Each is refused, or is as any; beside them another's stream goes on, and ends whole."""
    walls.until_calm(quick_server)
    seen = asyncio.run(hostile_beside_streams(quick_server, rounds=1, spell_s=0.1))
    refused = {name for name, statuses in seen.statuses.items() if statuses == [400]}
    served = {name for name, statuses in seen.statuses.items() if statuses == [200]}
    assert refused | served == set(HOSTILE)
    assert {"pattern_all_of", "ref_itself", "ref_circle", "nested_200", "enum_20000"} <= refused
    assert {"regex_nested_plus", "regex_tail", "ref_doubling", "grammar_ambiguous"} <= served
    assert max(seen.beside_s) < 1


def test_many_forms_are_compiled_one_by_one(quick_server: Server) -> None:
    """Of schemas that differ each is answered, and the memory is looked at on the way."""
    statuses, memory_mib = asyncio.run(unique_forms(quick_server, 40, looks=4))
    assert statuses == {200: 40}
    assert len(memory_mib) == 4
    assert min(memory_mib) > 100
