"""The screen of `sluice top`: right at 80 × 24, whatever there is to show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gateway.cli.top_screen import screen


def view(
    *, num_models: int = 1, num_bands: int = 4, num_tenants: int = 20, num_slow: int = 10
) -> dict[str, Any]:
    """Make a view as the admin API answers it."""
    ended = {
        "requests": 1234,
        "failed": 5,
        "output_tokens": 99_000,
        "mean_ttft_s": 0.0421,
        "worst_ttft_s": 12.5,
        "promised": 100,
        "attained": 0.987,
    }
    return {
        "at": "2026-11-23T18:00:00.5Z",
        "window_s": 60.0,
        "models": [
            {
                "model": f"llama-{n}",
                "policy": "vtc",
                "queued": 12,
                "running": 256,
                "kv_used": 0.934,
                "backlog_s": 3.21,
                "prompt_tokens_per_s": 123_456.7,
                "output_tokens_per_s": 8123.4,
                "num_rejected": 7,
                "num_preemptions": 3,
            }
            for n in range(num_models)
        ],
        "bands": [
            {"band": name, "queued": 3, "queued_tokens": 4567, "running": 9}
            for name in ("priority", "default", "flex", "due", "batch")[:num_bands]
        ],
        "ended": ended,
        "shares": [
            {
                "model": "llama-0",
                "tenant": f"tenant-{n}",
                "band": "priority",
                "weight": 2.5,
                "entitled": 0.05,
                "received": 0.4 if n == 0 else None,
                "queued": 3,
                "running": 9,
            }
            for n in range(num_tenants)
        ],
        "slowest": [{"tenant": f"slow-{n}", **ended} for n in range(num_slow)],
    }


def test_a_full_view_fits_80_by_24() -> None:
    """Twenty-four lines and no more, none wider; each table has its head and rows."""
    lines = screen(view())
    assert len(lines) == 24
    assert max(map(cell_len, lines)) <= 80
    assert lines[0] == (
        "sluice top  2026-11-23 18:00:00 UTC   256 running, 12 queued, 8.1k tokens/s"
    )
    assert "promises kept 99%" in lines[1]
    heads = [line.split()[0] for line in lines if line[:2].isupper()]
    assert heads == ["MODEL", "BAND", "SHARES", "SLOWEST"]
    [share] = [line for line in lines if line.startswith("tenant-0 ")]
    assert share.split()[1:6] == ["priority", "3", "9", "5%", "40%"]
    assert sum(line.startswith("tenant-") for line in lines) >= 5
    assert sum(line.startswith("slow-") for line in lines) >= 2
    assert any(line.startswith("llama-0") and "93%" in line for line in lines)


def test_who_is_just_done_has_no_part_that_it_is_held_to() -> None:
    """A dash stands for what it is entitled to, and no line in its bar."""
    done = view(num_tenants=1)
    done["shares"][0] |= {"entitled": None, "received": 1.0, "queued": 0, "running": 0}
    [share] = [line for line in screen(done) if line.startswith("tenant-0 ")]
    assert share.split()[1:] == ["priority", "0", "0", "-", "100%", "█" * 14]


def test_an_idle_server_is_said_to_be_idle() -> None:
    """Without work there are heads and a word, and no table that is empty."""
    idle = view(num_bands=0, num_tenants=0, num_slow=0)
    idle["ended"] |= {"mean_ttft_s": None, "worst_ttft_s": None, "attained": None}
    idle["models"][0] |= {"prompt_tokens_per_s": None, "output_tokens_per_s": None}
    text = "\n".join(screen(idle))
    assert "no tenant has work" in text
    assert "SLOWEST" not in text
    assert "BAND" not in text


@pytest.mark.parametrize("name", ["名前" * 20, "x" * 64, "a\x1b[31m\nb", "é" * 30])
def test_a_name_neither_widens_a_line_nor_breaks_one(name: str) -> None:
    """Wide letters count as two, and what is no letter is not sent to the terminal."""
    odd = view()
    odd["shares"][0]["tenant"] = odd["slowest"][0]["tenant"] = odd["models"][0]["model"] = name
    lines = screen(odd)
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert all("\n" not in line for line in lines)


@settings(max_examples=60)
@given(
    st.integers(10, 200),
    st.integers(5, 60),
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(0, 20),
    st.integers(0, 10),
)
def test_any_view_fits_any_terminal(
    width: int, height: int, num_models: int, num_bands: int, num_tenants: int, num_slow: int
) -> None:
    """However small the terminal or full the view, nothing is wider or longer than it."""
    shown = view(
        num_models=num_models, num_bands=num_bands, num_tenants=num_tenants, num_slow=num_slow
    )
    lines = screen(shown, width, height)
    assert 0 < len(lines) <= height
    assert max(map(cell_len, lines)) <= width
