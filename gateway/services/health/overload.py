"""The overload ladder: how hard the server is pressed, as one of five levels.

    level        entered when                                        what is given up
    1 BUSY       KV > 85 %, or flex work would wait beyond its time   batch work waits
    2 PRESSED    KV > 92 % with a queue, or the queue > 50 % full     flex is refused
    3 STRAINED   default work would wait beyond its time,             all but priority is refused,
                 or the queue > 90 %                                  whose tenants have much of it
    4 SATURATED  memory > 90 %, or the event loop lags > 250 ms       all is refused, unread

A level is entered when its trigger has held for a second, and left, one level at a time, when what
holds it has stayed below nine tenths of the trigger for five. Time is an argument; nothing here
measures anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_ENTER_S: Final = 1.0
_LEAVE_S: Final = 5.0
# Of a trigger: below this part of it a level may be left.
_RELIEF: Final = 0.9


class Level(IntEnum):
    """Rank how hard the server is pressed."""

    CALM = 0
    BUSY = 1
    PRESSED = 2
    STRAINED = 3
    SATURATED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Say what was measured, each as a share of its bound: 1 is all of it.

    `kv` blocks in use, `queue` places taken, `flex_wait` and `default_wait` the forecast wait over
    what such work may wait, `memory` of the process over what it may have, `lag_s` of the event
    loop in seconds.
    """

    kv: float = 0.0
    queue: float = 0.0
    flex_wait: float = 0.0
    default_wait: float = 0.0
    memory: float = 0.0
    lag_s: float = 0.0


def pressure(signals: Signals) -> tuple[tuple[Level, float, str], ...]:
    """Say for each level how close its nearest trigger is, as a ratio, and which that is."""
    kv_and_queue = signals.kv if signals.queue > 0 else 0.0
    triggers = {
        Level.BUSY: {"kv": signals.kv / 0.85, "flex_wait": signals.flex_wait},
        Level.PRESSED: {"kv": kv_and_queue / 0.92, "queue": signals.queue / 0.5},
        Level.STRAINED: {"default_wait": signals.default_wait, "queue": signals.queue / 0.9},
        Level.SATURATED: {"memory": signals.memory / 0.9, "lag": signals.lag_s / 0.25},
    }
    nearest = {level: max(found, key=found.__getitem__) for level, found in triggers.items()}
    return tuple((level, triggers[level][name], name) for level, name in nearest.items())


class OverloadLadder:
    """Follow signals up and down the levels; `cause` names the trigger of the present one."""

    def __init__(self) -> None:
        self.level = Level.CALM
        self.cause = ""
        # Since when each level's trigger has held, and the present one's has been relieved.
        self._held_since_s: dict[Level, float] = {}
        self._relieved_since_s: float | None = None

    def observe(self, signals: Signals, now: float) -> Level:
        """Take in what was measured at `now`, in seconds; returns the level from now on."""
        found = pressure(signals)
        for level, ratio, name in found:
            if ratio <= 1.0:
                self._held_since_s.pop(level, None)
            elif now - self._held_since_s.setdefault(level, now) >= _ENTER_S and level > self.level:
                self.level, self.cause = level, name
                self._relieved_since_s = None
        if self.level is not Level.CALM:
            self._leave(max(ratio for level, ratio, _ in found if level >= self.level), now)
        return self.level

    def _leave(self, ratio: float, now: float) -> None:
        if ratio >= _RELIEF:
            self._relieved_since_s = None
        elif self._relieved_since_s is None:
            self._relieved_since_s = now
        elif now - self._relieved_since_s >= _LEAVE_S:
            self.level = Level(self.level - 1)
            self._relieved_since_s = now
            if self.level is Level.CALM:
                self.cause = ""
