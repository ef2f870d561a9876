"""Streams and disconnects at a small size; `make soak` runs them at full size."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from tests.live_server import Server
from tests.soak import streams

ROOT = Path(__file__).parent.parent.parent


def test_concurrent_streams_are_complete_and_correct(made_data_dir: Path) -> None:
    """Each of many streams gets the text that the same question gets alone, in OpenAI's shape."""
    result = asyncio.run(streams.concurrent_streams(made_data_dir, num_streams=32, rounds=2))
    assert result.wrong == []


def test_disconnect_gives_back_slots_and_blocks(made_data_dir: Path) -> None:
    """A client that leaves frees its slot and all its blocks, streaming or not."""
    result = asyncio.run(streams.disconnects(made_data_dir, num_each=20, together=5))
    assert len(result.streaming_s) == len(result.plain_s) == 20


def test_trace_is_replayed_and_all_is_answered(server: Server) -> None:
    """The example replays real arrivals and lengths, and every request is answered in full."""
    script = ROOT / "examples/replay_trace.py"
    flags = ["--requests", "40", "--speed", "8", "--context", "1024", "--json"]
    done = subprocess.run(
        [sys.executable, script, "--base-url", server.api, "--key", server.key, *flags],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["answered"] == result["requests"] == 40


def test_chat_example_prints_an_answer(server: Server) -> None:
    """The SDK example answers a newcomer's question."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples/chat.py", "What is Sluice?"],
        env={"SLUICE_BASE_URL": server.api, "SLUICE_API_KEY": server.key},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "gateway" in done.stdout.lower()
