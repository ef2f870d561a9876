"""How many items each of several engines is given."""

from __future__ import annotations

from gateway.services.batches.worker_places import Places
from scheduler.state import Room

FREE, BUSY = Room(4, 1, 0, 0, 0.0), Room(4, 2, 3, 0, 0.0)


class Engine:
    """Have the room that it is told."""

    def __init__(self, room: Room) -> None:
        self.now = room

    def room(self) -> Room:
        return self.now


def test_a_busy_engine_holds_up_nobody_who_asks_for_another() -> None:
    """It has no places itself, and none for who asks for both."""
    places = Places({"a": Engine(FREE), "b": Engine(BUSY)}, [], is_pressed=lambda model: False)
    assert (places.of(["a"]), places.of(["b"]), places.of(["a", "b"]), places.total) == (6, 0, 0, 6)


def test_what_is_claimed_counts_where_it_runs() -> None:
    """By name or alias; what asks for several has a place in each."""
    one, other = Engine(FREE), Engine(FREE)
    engines = {"a": one, "also-a": one, "b": other}
    claimed = [["a"], ["also-a"], ["a", "b"]]
    places = Places(engines, claimed, is_pressed=lambda model: False)
    assert (places.of(["also-a"]), places.of(["b"]), places.total) == (3, 5, 8)
    places.take(["a", "b"], 2)
    assert (places.of(["a"]), places.of(["b"])) == (1, 3)


def test_a_pressed_model_gets_nothing() -> None:
    """And one beside it what it has room for."""
    engines = {"a": Engine(FREE), "b": Engine(FREE)}
    places = Places(engines, [], is_pressed=lambda model: model == "a")
    assert (places.of(["a"]), places.of(["b"])) == (0, 6)


def test_less_than_a_handful_is_not_claimed_by_itself() -> None:
    """Beside twenty that run, four places are left until there are five."""
    room = Room(12, 0, 0, 0, 0.0)
    places = Places({"a": Engine(room)}, [["a"]] * 20, is_pressed=lambda model: False)
    assert places.total == 0
