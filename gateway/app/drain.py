"""The way out: from the first signal to nothing left that runs.

    SIGTERM      readiness goes; items of batches are given back; new work is still taken, for
                 `drain_accept_s`, and every answer says `Connection: close`, until the balancer
                 has looked elsewhere
    then         new work gets a 503; what runs may end, until 10 s before the grace is over
    then         the engines stop: each survivor gets a last event, or a 503, that says so
    at the grace the process exits, whatever still hangs, with code 1

SIGINT, a person's Ctrl-C, skips the first part: nobody balances a terminal. A second signal of
either kind goes on to the survivors at once and leaves `_HURRY_S` for all the rest; a third is
the end. An exit that is not clean leaves nothing to clean up: the embedded servers stop when
their parent is gone, and the next start takes the locks over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, NoReturn

from gateway.api.front import Front
from gateway.services.health import Lifecycle, Phase
from scheduler.service import EngineService

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.02
# Kept of the grace for survivors and for closing; of a grace that is short, half.
_CLOSE_S: Final = 10.0
_HURRY_S: Final = 5.0
# For survivors' last words to be written, once nothing computes any more.
_LAST_WORDS_S: Final = 2.0


class Signals:
    """Hand out SIGTERM and SIGINT one by one."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[signal.Signals]] = []
        self._early: list[signal.Signals] = []

    def next(self) -> asyncio.Future[signal.Signals]:
        """Return a future of the next signal that no earlier future took."""
        future: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        if self._early:
            future.set_result(self._early.pop(0))
        else:
            self._waiting.append(future)
        return future

    def receive(self, number: signal.Signals) -> None:
        if self._waiting:
            self._waiting.pop(0).set_result(number)
        else:
            self._early.append(number)


@contextlib.contextmanager
def caught_signals() -> Generator[Signals]:
    """Take SIGTERM and SIGINT over from the running loop's process while the block runs."""
    loop = asyncio.get_running_loop()
    signals = Signals()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, signals.receive, number)
    try:
        yield signals
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class Drain:
    """Take one process out of service. `fronts` are all its ports, `public` the one with work."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        public: Front,
        fronts: Sequence[Front],
        services: Sequence[EngineService],
        *,
        accept_s: float,
        grace_s: float,
        let_go: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Make it. `let_go` ends what nobody waits for here, and others can do as well."""
        self._lifecycle = lifecycle
        self._public = public
        self._fronts = fronts
        self._services = services
        self._accept_s = accept_s
        self._grace_s = grace_s
        self._let_go = let_go

    async def run(self, first: signal.Signals | None, signals: Signals) -> None:
        """Return when no request is left; `first` is what began it, None where it was no signal."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        exit_in(self._grace_s, "the grace is over", code=1)
        hurry, force = signals.next(), signals.next()
        hurry.add_done_callback(_hurried)
        force.add_done_callback(_forced)
        finish_s = begun_s + self._grace_s - min(_CLOSE_S, self._grace_s / 2)

        self._lifecycle.advance(Phase.DRAINING)
        for front in self._fronts:
            front.closing = True
        letting_go = asyncio.ensure_future(self._let_go()) if self._let_go is not None else None
        if first is signal.SIGTERM:
            accept_s = min(self._accept_s, finish_s - begun_s)
            await asyncio.wait([hurry], timeout=accept_s)
        self._lifecycle.advance(Phase.REFUSING)
        self._public.refuse()
        # Requests belong to uvicorn's tasks and have no event for "none": they are polled.
        while self._public.num_requests and loop.time() < finish_s and not hurry.done():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        if letting_go is not None:
            # What it has not given back by then, others take back.
            await asyncio.wait([letting_go], timeout=max(0.0, finish_s - loop.time()))
        await self._end_survivors()

    async def _end_survivors(self) -> None:
        if self._public.num_requests:
            logger.warning("%d requests are ended unfinished", self._public.num_requests)
        for service in self._services:
            await asyncio.to_thread(service.stop)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _LAST_WORDS_S
        while self._public.num_requests and loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


def exit_in(timeout_s: float, why: str, *, code: int) -> None:
    """Exit without ceremony after a time, should the process still be there."""
    timer = threading.Timer(timeout_s, _exit_now, (why, code))
    timer.daemon = True
    timer.start()


def _hurried(done: asyncio.Future[signal.Signals]) -> None:
    if not done.cancelled():
        exit_in(_HURRY_S, "a second signal came", code=1)


def _forced(done: asyncio.Future[signal.Signals]) -> None:
    if not done.cancelled():
        _exit_now("a third signal came", 1)


def _exit_now(why: str, code: int) -> NoReturn:
    logger.error("%s: exiting at once", why)
    logging.shutdown()
    os._exit(code)
