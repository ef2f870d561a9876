"""A server that is asked for more than it can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live_server import start_server
from tests.soak import overload


@pytest.mark.alone
def test_overload_is_refused_and_what_is_taken_is_served(made_data_dir: Path) -> None:
    """At five times the capacity most is refused with a time to come back, nothing fails, and
    the priority tier notices nothing."""
    server = start_server(made_data_dir, *overload.ENGINE, **overload.SETTINGS)
    result = overload.press(server, near_s=8, over_s=8, settle_s=4)
    assert server.stop() == 0
    assert result.num_failed == 0
    assert result.num_refused > 100
    assert result.num_refused_without_retry == 0
    assert result.goodput_rps > 0.5 * result.peak_goodput_rps
    assert result.priority_in_time > 0.9
