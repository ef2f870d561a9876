"""A server that is asked for more than it can do."""

from __future__ import annotations

from pathlib import Path

from tests.live_server import start_server
from tests.soak import overload


def test_overload_is_refused_and_what_is_taken_is_served(data_dir: Path) -> None:
    """At five times the capacity most is refused with a time to come back, nothing fails, and
    the priority tier notices nothing."""
    server = start_server(data_dir, *overload.ENGINE, **overload.SETTINGS)
    result = overload.press(server, near_s=14, over_s=14)
    assert server.stop() == 0
    assert result.num_failed == 0
    assert result.num_refused > 100
    assert result.num_refused_without_retry == 0
    assert result.goodput_rps > 0.5 * result.peak_goodput_rps
    assert result.priority_in_time > 0.9
