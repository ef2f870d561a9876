"""The parts of a drain that end a process without ceremony."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from gateway.app.drain import Signals, caught_signals


@pytest.mark.anyio
async def test_signals_are_handed_out_one_by_one() -> None:
    """A signal goes to the future that waited longest, or to the next that is asked for."""
    with caught_signals() as signals:
        first, second = signals.next(), signals.next()
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first, 10) is signal.SIGTERM
        assert not second.done()
        signal.raise_signal(signal.SIGINT)
        assert await asyncio.wait_for(second, 10) is signal.SIGINT
    early = Signals()
    early.receive(signal.SIGINT)
    assert early.next().result() is signal.SIGINT
    assert not early.next().done()


def test_the_grace_ends_a_process_that_hangs() -> None:
    """At the deadline a process exits with 1, whatever its threads do, and says why."""
    code = (
        "import threading; from gateway.app.drain import exit_in; "
        "exit_in(0.1, 'the grace is over', code=1); threading.Event().wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the grace is over" in done.stderr


def test_a_third_signal_ends_a_process_at_once() -> None:
    """Whoever signals a third time waits for nothing, not even the end of an engine's step."""
    code = """
import asyncio, signal, threading
from gateway.api.front import Front
from gateway.api.health import Health
from gateway.app.drain import Drain, caught_signals
from gateway.services.health.heartbeat import Heartbeat
from gateway.services.health.lifecycle import Lifecycle, Phase
from gateway.services.health.probes import Probes

class Hanging:
    def stop(self):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait()

async def main():
    lifecycle = Lifecycle()
    lifecycle.advance(Phase.SERVING)
    front = Front(Health(Probes(lifecycle, Heartbeat())))
    drain = Drain(lifecycle, front, [front], [Hanging()], accept_s=0, grace_s=600)
    with caught_signals() as signals:
        await drain.run(signal.SIGTERM, signals)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "a third signal came" in done.stderr
