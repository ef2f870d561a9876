"""Turns of engines that have their cores in common."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine_turns import EngineTurns, Place


class Clock:
    """Tell a time that goes on as it is told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Engines:
    """Have threads take turns; each takes one, and computes, when the test lets it."""

    def __init__(
        self,
        *weights: float,
        patience_s: float = 30.0,
        spare: Iterable[int] = (),
        loss: float = 0.2,
    ) -> None:
        self.clock = Clock()
        self.turns = EngineTurns(clock=self.clock, patience_s=patience_s)
        # The numbers of those that have batch work alone.
        self.spare = set(spare)
        self.places = [
            self.turns.place(
                weight, has_spare_work=partial(self.spare.__contains__, n), spare_share=lambda: loss
            )
            for n, weight in enumerate(weights)
        ]

    def waiting(self, place: Place) -> threading.Thread:
        """Have a thread wait for a turn."""
        thread = threading.Thread(target=place.take, daemon=True)
        thread.start()
        while thread.is_alive() and place not in self.turns._waiting:
            thread.join(0.001)
        return thread


def contest(engines: Engines, steps_s: Sequence[float], num_steps: int) -> Iterator[list[float]]:
    """Let engines that always have work compute; yield their times after each step.

    Time goes on only while somebody computes, so that one thread may play them all: at each moment
    who holds the turn goes on, and asks for the next while the others wait.
    """
    threads = {place: engines.waiting(place) for place in engines.places}
    for _ in range(num_steps):
        [holder] = [place for place in engines.places if place is engines.turns._holder]
        threads[holder].join()
        engines.clock.now_s += steps_s[engines.places.index(holder)]
        threads[holder] = engines.waiting(holder)
        while engines.turns._holder is None:
            threading.Event().wait(0.0001)
        yield [place.computed_s for place in engines.places]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.25, 1.0, 3.0]), st.floats(0.001, 1.0)), min_size=2, max_size=4
    )
)
def test_times_are_as_the_weights_however_long_the_steps(
    engines: list[tuple[float, float]],
) -> None:
    """While all have work, what two got for their weight differs by a step of each at most."""
    weights, steps_s = [list(part) for part in zip(*engines, strict=True)]
    bound_s = [step_s / weight for weight, step_s in engines]
    for computed_s in contest(Engines(*weights), steps_s, 40):
        got = [time_s / weight for time_s, weight in zip(computed_s, weights, strict=True)]
        for one, bound_one in zip(got, bound_s, strict=True):
            for other, bound_other in zip(got, bound_s, strict=True):
                assert abs(one - other) <= bound_one + bound_other + 1e-6


def test_who_is_alone_never_waits() -> None:
    """It takes turn after turn without giving one up."""
    engines = Engines(1.0, 1.0)
    for _ in range(3):
        engines.places[0].take()
        engines.clock.now_s += 1.0
    engines.places[0].leave()
    engines.places[1].take()


def test_who_leaves_has_computed() -> None:
    """One that gives its turn up after each step is charged for each, as who goes on is."""
    engines = Engines(1.0, 2.0)
    for _ in range(3):
        for place in engines.places:
            place.take()
            engines.clock.now_s += 1.0
            place.leave()
    one, other = engines.places
    assert (one.computed_s, other.computed_s) == (3.0, 3.0)
    assert one.tag >= 3.0


def test_who_comes_begins_where_the_others_are() -> None:
    """After twenty steps of two that always wait for each other it is not twenty behind."""
    engines = Engines(1.0, 1.0)
    for _ in contest(engines, [1.0, 1.01], 20):
        pass
    newcomer = engines.turns.place(1.0)
    engines.waiting(newcomer)
    assert newcomer.tag >= 9.0


def test_a_rest_is_neither_owed_for_nor_saved_up() -> None:
    """Who comes after ten seconds is next at once, and then has its part and no more."""
    engines = Engines(1.0, 1.0)
    busy, rested = engines.places
    for _ in range(10):
        busy.take()
        engines.clock.now_s += 1.0
    first = engines.waiting(rested)
    again = engines.waiting(busy)
    first.join()
    engines.clock.now_s += 1.0
    rested.take()
    engines.clock.now_s += 1.0
    second = engines.waiting(rested)
    again.join()
    assert engines.turns._holder is busy
    engines.clock.now_s += 2.0
    busy.leave()
    second.join()


@pytest.mark.parametrize(
    ("weights", "part"),
    [((1.0, 1.0), 0.2), ((3.0, 1.0), 0.2), ((1.0, 1.0, 1.0), 1 / 9)],
)
def test_batch_work_takes_of_others_time_what_may_be_lost_at_most(
    weights: tuple[float, ...], part: float
) -> None:
    """However long its steps are and whatever its weight is; alone it has all there is."""
    engines = Engines(*weights, spare=[0])
    *_, (batch_s, *others_s) = contest(engines, [0.06, 0.003, 0.004], 900)
    share = batch_s / (batch_s + sum(others_s))
    assert share == pytest.approx(part, rel=0.1)


@pytest.mark.parametrize(
    ("weights", "part"), [((1.0, 3.0, 0.5), 0.125 / 3.625), ((0.1, 1.0), 0.025 / 1.025)]
)
def test_batch_work_weighs_a_fourth_of_the_least_weight_of_all(
    weights: tuple[float, ...], part: float
) -> None:
    """Its own is among these, and no more than a step is taken beyond that."""
    engines = Engines(*weights, spare=[0])
    *_, (batch_s, *others_s) = contest(engines, [0.03, 0.006, 0.008], 500)
    assert abs(batch_s - part * (batch_s + sum(others_s))) <= 0.03


def test_batch_work_of_two_is_as_their_weights() -> None:
    """Nobody loses anything then."""
    *_, (one_s, other_s) = contest(Engines(3.0, 1.0, spare=[0, 1]), [0.02, 0.03], 400)
    assert one_s / other_s == pytest.approx(3.0, rel=0.05)


def test_without_a_loss_batch_work_counts_as_any_other() -> None:
    """As steps are, where nothing holds them apart."""
    *_, (batch_s, other_s) = contest(Engines(1.0, 1.0, spare=[0], loss=0.0), [0.06, 0.003], 800)
    assert batch_s / other_s == pytest.approx(1.0, rel=0.05)


def test_a_request_does_not_wait_for_what_batch_work_before_it_had() -> None:
    """What computes meanwhile gives its turn up after its step; then both have their part."""
    engines = Engines(1.0, 1.0, spare=[0])
    times = contest(engines, [0.06, 0.01], 60)
    for before_s in times:
        if before_s[1] > 0.04:
            break
    assert before_s[0] == pytest.approx(0.06)
    engines.spare.clear()
    *_, after_s = islice(times, 2)
    assert after_s[0] == pytest.approx(0.12)
    *_, last_s = times
    mine_s, others_s = (last_s[at] - before_s[at] for at in (0, 1))
    assert mine_s == pytest.approx(others_s, abs=0.07)


def test_requests_now_and_then_do_not_make_batch_work_dear_to_others() -> None:
    """Going from one to the other earns nothing."""
    engines = Engines(1.0, 1.0)
    times: list[list[float]] = []
    for number, computed_s in enumerate(contest(engines, [0.01, 0.01], 800)):
        times.append(computed_s)
        # A request at every tenth step, which has that one.
        (engines.spare.discard if number % 10 == 0 else engines.spare.add)(0)
    batch_s, other_s = times[-1]
    assert batch_s / (batch_s + other_s) < 0.3


def test_one_that_is_stuck_holds_nobody_up_for_good() -> None:
    """After a while the others compute beside it, and it joins them when it comes back."""
    engines = Engines(1.0, 1.0, patience_s=0.01)
    stuck, other = engines.places
    stuck.take()
    engines.clock.now_s += 1.0
    engines.waiting(other).join()
    assert stuck.computed_s == 1.0, "what it kept from others counts"
    back = engines.waiting(stuck)
    assert back.is_alive()
    other.leave()
    back.join()
    assert engines.turns._holder is stuck


@pytest.mark.parametrize("num", [2, 3])
def test_one_computes_at_a_time(num: int) -> None:
    """Whatever threads there are, and however often they come and go."""
    turns = EngineTurns()
    inside, most = [0], [0]

    def drive(place: Place) -> None:
        for number in range(60):
            place.take()
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            if number % 7 == 0:
                place.leave()
        place.leave()

    threads = [threading.Thread(target=drive, args=(turns.place(1.0),)) for _ in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
