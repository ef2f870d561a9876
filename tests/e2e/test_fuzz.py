"""Hostile input at a small size; `make soak ARGS="--part guards_fuzz"` runs 200,000 cases."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.live_server import start_server
from tests.soak.guards import fuzz_beside_victim


def test_fuzzed_input_costs_its_sender_alone(made_data_dir: Path) -> None:
    """Bad bytes end no engine, get no answer of 500 or more, and change nobody else's text."""
    server = start_server(made_data_dir)
    try:
        result = asyncio.run(fuzz_beside_victim(server, count=2_000, seed=5))
    finally:
        assert server.stop() == 0
    assert result.deaths == 0
    assert result.tally.findings == []
    assert result.tally.statuses["200"] > 100, "odd parameters are to reach the engine"
    assert result.wrong == []
    assert result.shared_samples > 0, "the victim is to be computed beside the fuzzed"
