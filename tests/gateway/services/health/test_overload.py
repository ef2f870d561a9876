"""Up the overload ladder and down again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.services.health.overload import Level, OverloadLadder, Signals


def hold(ladder: OverloadLadder, signals: Signals, from_s: float, for_s: float) -> float:
    """Show the ladder the same signals four times a second; returns the time after it."""
    steps = round(for_s * 4)
    for step in range(steps + 1):
        ladder.observe(signals, from_s + step / 4)
    return from_s + for_s


@pytest.mark.parametrize(
    ("signals", "level", "cause"),
    [
        (Signals(kv=0.86), Level.BUSY, "kv"),
        (Signals(flex_wait=1.1), Level.BUSY, "flex_wait"),
        (Signals(kv=0.93, queue=0.01), Level.PRESSED, "kv"),
        (Signals(queue=0.51), Level.PRESSED, "queue"),
        (Signals(default_wait=1.1), Level.STRAINED, "default_wait"),
        (Signals(queue=0.91), Level.STRAINED, "queue"),
        (Signals(memory=0.91), Level.SATURATED, "memory"),
        (Signals(lag_s=0.3), Level.SATURATED, "lag"),
        (Signals(kv=0.84, queue=0.49, flex_wait=0.9, memory=0.8, lag_s=0.2), Level.CALM, ""),
        (Signals(kv=1.0), Level.BUSY, "kv"),
    ],
)
def test_each_trigger_leads_to_its_level(signals: Signals, level: Level, cause: str) -> None:
    """What holds for a second enters the level it stands for, from wherever the ladder was."""
    ladder = OverloadLadder()
    hold(ladder, signals, 0.0, 1.0)
    assert (ladder.level, ladder.cause) == (level, cause)


def test_a_spike_is_no_level() -> None:
    """What does not hold for a second changes nothing, however often it comes."""
    ladder = OverloadLadder()
    for n in range(20):
        hold(ladder, Signals(lag_s=3.0), n * 1.0, 0.5)
        ladder.observe(Signals(), n * 1.0 + 0.75)
    assert ladder.level is Level.CALM


def test_a_level_is_left_slowly_and_one_by_one() -> None:
    """Five seconds of relief for each level, and a relapse begins the five anew."""
    ladder = OverloadLadder()
    now = hold(ladder, Signals(lag_s=1.0), 0.0, 1.0)
    now = hold(ladder, Signals(), now + 0.25, 4.5)
    assert ladder.level is Level.SATURATED
    now = hold(ladder, Signals(lag_s=0.24), now + 0.25, 1.0)
    now = hold(ladder, Signals(), now + 0.25, 4.5)
    assert ladder.level is Level.SATURATED
    now = hold(ladder, Signals(), now + 0.25, 1.0)
    assert ladder.level is Level.STRAINED
    hold(ladder, Signals(), now + 0.25, 16.0)
    assert (ladder.level, ladder.cause) == (Level.CALM, "")


def test_a_level_is_kept_near_its_trigger() -> None:
    """Between nine tenths of a trigger and the trigger nothing changes, up or down."""
    ladder = OverloadLadder()
    now = hold(ladder, Signals(queue=0.6), 0.0, 1.0)
    hold(ladder, Signals(queue=0.47), now + 0.25, 60.0)
    assert ladder.level is Level.PRESSED


_SHARES = st.floats(0.0, 2.0)
_SIGNALS = st.builds(
    Signals,
    kv=_SHARES,
    queue=_SHARES,
    flex_wait=_SHARES,
    default_wait=_SHARES,
    memory=_SHARES,
    lag_s=_SHARES,
)


@given(st.lists(st.tuples(_SIGNALS, st.floats(0.05, 3.0)), max_size=40))
def test_it_comes_down_from_anywhere(history: list[tuple[Signals, float]]) -> None:
    """After half a minute without pressure the server is calm, whatever was before."""
    ladder, now = OverloadLadder(), 0.0
    for signals, step_s in history:
        now += step_s
        ladder.observe(signals, now)
    hold(ladder, Signals(), now + 0.25, 30.0)
    assert ladder.level is Level.CALM
