"""Counts of a real scheduler that has done a little."""

from __future__ import annotations

from scheduler.core import Scheduler
from scheduler.counts import Counts
from scheduler.inline import InlineLoop
from tests.fakes import make_engine, make_request


def counted() -> Counts:
    """Read the counts of a scheduler that has answered one request of three tokens with four."""
    engine = make_engine()
    scheduler = Scheduler(engine.info)
    now = 0.0
    loop = InlineLoop(scheduler, engine, lambda: now)
    scheduler.offer(make_request(ignore_eos=True), now)
    loop.idle = False
    while not loop.idle:
        loop.turn()
        now += 1.0
    return scheduler.counts()
