"""How many items wait for an operator, as the metric and the log have it."""

from __future__ import annotations

import logging

import pytest

from gateway.services.admin.dead_items import DeadItemWatch

pytestmark = pytest.mark.anyio


class Waiting:
    """Hold so many items."""

    def __init__(self) -> None:
        self.number = 0

    async def count(self) -> int:
        return self.number


async def test_the_log_says_so_when_there_are_more(caplog: pytest.LogCaptureFixture) -> None:
    """Each count is told; a line comes with more of them, not with as many or fewer."""
    waiting, told = Waiting(), list[int]()
    watch = DeadItemWatch(waiting, told.append)  # type: ignore[arg-type]
    for waiting.number in (0, 2, 2, 1, 3):
        await watch.count()
    assert told == [0, 2, 2, 1, 3]
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert [line.split()[0] for line in said] == ["2", "3"]
    assert all("sluice batch dead list" in line for line in said)
