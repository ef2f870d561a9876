"""A rolling restart at a small size; `make soak ARGS="--part rolling_restart"` does twenty."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.made_stores import MadeStores
from tests.soak.rolling import rolling_restart


@pytest.mark.timeout(120)
def test_a_rolling_restart_fails_no_request(data_dir: Path, made_stores: MadeStores) -> None:
    """Two servers restarted in turn, twice each: every request is answered, every stream ended."""
    for name in ("a", "b"):
        made_stores.copy(data_dir.parent / name)
    # Ten polls of the balancer: enough for it to look elsewhere.
    rolled = rolling_restart(data_dir.parent, restarts=2, SLUICE_DRAIN_ACCEPT_S="1")
    result = asyncio.run(rolled)
    assert [kills.sent[signal.SIGTERM.name] for kills in result.kills] == [2, 2]
    assert [kills.exit_codes for kills in result.kills] == [[0, 0], [0, 0]]
    assert min(result.balanced.answered.values()) > 0, "both are to serve"
    assert result.failures == []
    assert result.unterminated == 0
    assert result.requests > 20
