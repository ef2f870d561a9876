"""Signals sent to a server's process group after seeded delays, and word when it is back."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

DEADLY: Final = (signal.SIGKILL, signal.SIGTERM)


class Killable(Protocol):
    """Offer what `tests.faults.replica.Replica` does."""

    def start(self) -> None: ...

    def send(self, number: signal.Signals) -> None: ...

    async def wait_ended(self, *, timeout_s: float = ...) -> int: ...

    async def wait_ready(self, *, timeout_s: float = ...) -> float: ...


@dataclass
class Kills:
    """Hold what was sent, how the processes ended, and how long each took to end and to be back."""

    sent: Counter[str] = field(default_factory=Counter)
    exit_codes: list[int] = field(default_factory=list)
    ending_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)


class Killer:
    """Hit one server time and again; a server that dies is started again.

    `delay_s` are the shortest and the longest wait before a signal, `stopped_s` those of a stop
    until SIGCONT follows. Both are drawn from `seed`.
    """

    def __init__(
        self,
        server: Killable,
        *,
        seed: int,
        delay_s: tuple[float, float] = (0.0, 1.0),
        stopped_s: tuple[float, float] = (0.1, 1.0),
    ) -> None:
        self.kills = Kills()
        self._server = server
        self._draw = random.Random(seed)
        self._delay_s = delay_s
        self._stopped_s = stopped_s

    async def run(self, signals: Sequence[signal.Signals], *, rounds: int) -> Kills:
        """Send one of `signals` a round, and go on once the server is ready again."""
        for _ in range(rounds):
            await asyncio.sleep(self._draw.uniform(*self._delay_s))
            await self.hit(self._draw.choice(signals))
        return self.kills

    async def hit(self, number: signal.Signals) -> None:
        """Send one signal and see the server back: awake again, or started anew."""
        self._send(number)
        started = time.monotonic()
        if number == signal.SIGSTOP:
            await asyncio.sleep(self._draw.uniform(*self._stopped_s))
            self._send(signal.SIGCONT)
        elif number in DEADLY:
            self.kills.exit_codes.append(await self._server.wait_ended())
            self.kills.ending_s.append(time.monotonic() - started)
            self._server.start()
        self.kills.back_s.append(await self._server.wait_ready())

    def _send(self, number: signal.Signals) -> None:
        self.kills.sent[number.name] += 1
        self._server.send(number)
