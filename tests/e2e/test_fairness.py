"""Tenants' shares of the real server at a small size; `make soak` runs them for a minute."""

from __future__ import annotations

from pathlib import Path

from tests.live_server import run_sluice, sluice_env, start_server
from tests.soak import fairness


def test_two_tenants_who_flood_are_served_by_their_weights(made_data_dir: Path) -> None:
    """Shares are as 1 to 3 within 5 %, until the order of arrival, which has no weights, is set."""
    server = start_server(made_data_dir, **fairness.ENGINE)
    try:
        shares = fairness.flood(server, min_requests=320, min_s=2)
        env = sluice_env(SLUICE_DATA_DIR=str(made_data_dir))
        run_sluice("scheduler", "set", "--policy", "fcfs", env=env, check=True)
        without = fairness.flood(server, min_requests=96)
    finally:
        assert server.stop() == 0
    for flood in (shares, without):
        assert min(flood.least_waiting.values()) > 0, "both are to be backlogged throughout"
    assert shares.error <= 0.05, shares
    assert without.error > 0.3, without
