"""Failures of authentication: limited by client, and told once in a while."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.errors import AuthenticationFailed, TooManyFailures
from gateway.services.auth.failures import BURST, Failures

pytestmark = pytest.mark.anyio


class FakeClock:
    """Stand still until told; the wall clock goes astray."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        raise AssertionError("a clock that can be set back")

    def monotonic(self) -> float:
        return self.now_s


async def fail(failures: Failures, address: str | None, count: int = 1) -> list[float | None]:
    """Fail so often; return how long the client was told to wait each time, None for not."""
    failed = AuthenticationFailed(detail="d")
    answers = [await failures.answer(address, failed) for _ in range(count)]
    return [one.retry_after_s if isinstance(one, TooManyFailures) else None for one in answers]


async def test_who_fails_too_often_waits() -> None:
    """After a burst it is one a second; what is refused beyond prolongs nothing."""
    clock = FakeClock()
    failures = Failures(clock, hold_s=0)
    assert await fail(failures, "10.0.0.1", BURST) == [None] * BURST
    assert await fail(failures, "10.0.0.1", 100) == [pytest.approx(1.0)] * 100
    clock.now_s += 0.5
    assert await fail(failures, "10.0.0.1") == [pytest.approx(0.5)]
    clock.now_s += 0.6
    assert await fail(failures, "10.0.0.1", 2) == [None, pytest.approx(0.9)]
    clock.now_s += 10 * BURST
    assert (await fail(failures, "10.0.0.1", BURST + 1))[-2:] == [None, pytest.approx(1.0)]


async def test_a_failing_client_slows_no_other() -> None:
    """Clients are told apart: IPv4 by address, IPv6 by /64, and those without one together."""
    failures = Failures(FakeClock(), hold_s=0)
    for address in ("10.0.0.1", "2001:db8::1", None):
        assert (await fail(failures, address, BURST + 1))[-1] is not None
    assert await fail(failures, "10.0.0.2") == [None]
    assert await fail(failures, "2001:db8:0:1::1") == [None]
    assert (await fail(failures, "2001:db8::ffff"))[0] is not None
    assert (await fail(failures, "::ffff:10.0.0.1"))[0] is not None
    assert (await fail(failures, None))[0] is not None


async def test_what_is_kept_is_bounded() -> None:
    """Of more clients than there is room for, who has not failed for longest is forgotten."""
    failures = Failures(FakeClock(), hold_s=0, max_clients=10)
    await fail(failures, "10.0.0.1", BURST + 1)
    await fail(failures, "10.0.0.2", BURST + 1)
    for number in range(8):
        await fail(failures, f"10.0.1.{number}")
    assert (await fail(failures, "10.0.0.1"))[0] is not None
    await fail(failures, "10.0.2.1")
    assert len(failures._due_at) == 10
    assert (await fail(failures, "10.0.0.1"))[0] is not None
    assert await fail(failures, "10.0.0.2") == [None]


async def test_many_failures_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """It counts them and names who failed most: a warning while somebody fails too often."""
    caplog.set_level(logging.INFO)
    failures = Failures(FakeClock(), hold_s=0, log_s=0.1)
    await fail(failures, "10.0.0.1")
    await asyncio.sleep(0.15)
    await fail(failures, "10.0.0.1", 500)
    await fail(failures, "10.0.0.2", 20)
    await asyncio.sleep(0.15)
    await asyncio.sleep(0.15)
    one, many = caplog.records
    assert (one.levelno, many.levelno) == (logging.INFO, logging.WARNING)
    assert one.getMessage().startswith("1 requests without a live key or token, 1 of them from 10")
    assert many.getMessage() == (
        "520 requests without a live key or token, 500 of them from 10.0.0.1; the last: d"
    )


async def test_who_fails_too_often_is_answered_slowly() -> None:
    """So that one connection fails about as often as it may; a few alone are kept waiting."""
    failures = Failures(FakeClock(), hold_s=30, max_held=2)
    await fail(failures, "10.0.0.1", BURST)
    held = [asyncio.create_task(fail(failures, "10.0.0.1")) for _ in range(2)]
    await asyncio.sleep(0)
    assert await fail(failures, "10.0.0.1") == [pytest.approx(1.0)]
    assert await fail(failures, "10.0.0.2") == [None]
    assert not any(task.done() for task in held)
    held[0].cancel()
    await asyncio.wait([held[0]])
    held.append(asyncio.create_task(fail(failures, "10.0.0.1")))
    await asyncio.sleep(0)
    assert not held[-1].done()
    for task in held:
        task.cancel()
