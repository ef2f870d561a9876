"""A few things of clients a turn of the event loop, and addresses in turn.

A turn runs whatever is ready before the loop looks at its sockets again. So a hundred connections
that send at once hold it for as long as all of them take, however short each is, and whoever sends
a moment later waits for all of that at each of its own steps. What begins such work, a connection
that was accepted or a piece of one that came, is counted here: beyond `PER_TURN` it waits for the
next turn, in a queue of its address.

Behind a proxy all clients have one address: their things are done in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

# What a piece begins takes a third of a millisecond, mostly in the turn after it.
PER_TURN: Final = 8

Thing = Callable[[], None]


class FairTurns:
    """Do things on the running event loop, `per_turn` of them each time that it turns."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._num_done = 0
        self._waiting: dict[str, deque[Thing]] = {}
        self._is_turning = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self) -> bool:
        """Tell whether one more thing may be done in this turn, and count it."""
        if self._num_done >= self._per_turn:
            return False
        self._num_done += 1
        if not self._is_turning:
            self._is_turning = True
            if self._loop is None:
                # Which is a call of the kernel each time that it is asked for.
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._turn)
        return True

    def later(self, address: str, thing: Thing) -> None:
        """Do a thing for which this turn had no room, once it is its turn."""
        self._waiting.setdefault(address, deque()).append(thing)

    def do(self, address: str, thing: Thing) -> None:
        """Do a thing now where there is room, or else later."""
        if self.take():
            thing()
        else:
            self.later(address, thing)

    def _turn(self) -> None:
        """Begin another turn with what has waited."""
        self._is_turning = False
        self._num_done = 0
        while self._waiting and self.take():
            address, things = next(iter(self._waiting.items()))
            del self._waiting[address]
            thing = things.popleft()
            if things:
                # Behind the other addresses.
                self._waiting[address] = things
            thing()
