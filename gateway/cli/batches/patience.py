"""Asking again while a server is away: it restarts, or has too much to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.cli.exits import NoAnswer
from gateway.cli.public_client import TryLater

_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 15.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """Say for how long a server may be away before a command gives up."""

    give_up_s: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def ask(self, question: Callable[[], T], say: Callable[[str], None]) -> T:
        """Return the answer to a question that may be asked twice; `say` tells of the wait.

        Raises: `NoAnswer`: nothing came for `give_up_s`; any other `CliError` at once.
        """
        away_since: float | None = None
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                answer = question()
            except NoAnswer as exc:
                now = self.clock()
                if away_since is None:
                    away_since = now
                    say(f"{exc}; trying again")
                if now - away_since >= self.give_up_s:
                    raise
                asked_s = exc.retry_after_s if isinstance(exc, TryLater) else 0.0
                self.sleep(max(delay_s, min(asked_s, self.give_up_s)))
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            else:
                if away_since is not None:
                    say("the server answers again")
                return answer
