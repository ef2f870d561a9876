"""`sluice bench batching`, whole, on the demo model and at the smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.batching.baselines import BASELINES
from scheduler.bench.batching_bench import CONTINUOUS, main

ROOT = Path(__file__).parents[3]
SMALL = ["--threads", "1", "--rounds", "2", "--requests", "6", "--scale", "0.02", "--rows", "3"]


def test_all_ways_of_batching_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way has its figures, the ratios are of the same rounds, and the report is written."""
    # A type that is not the model's own is named; which one is fastest depends on the processor.
    assert main([*SMALL, "--dtype", "float32", "--json", "--out", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    report = json.loads((tmp_path / "batching.json").read_text())
    figures = report["figures"]
    assert figures == printed["figures"]
    for name in (*BASELINES, *CONTINUOUS):
        key = f"{name}_demo_fp32"
        assert figures[f"{key}_output_tokens_per_s"]["value"] > 0
        assert figures[f"{key}_ttft_p99_ms"]["value"] >= figures[f"{key}_ttft_p50_ms"]["value"]
        assert figures[f"{key}_latency_per_token_p50_ms"]["value"] > 0
    for name in BASELINES:
        assert figures[f"continuous_over_{name}_demo_fp32"]["value"] > 0
    assert figures["chunked_demo_fp32_max_gap_speedup"]["goal"] is None
    [samples] = report["samples"].values()
    rates = [samples[name]["output_tokens_per_s"] for name in ("continuous", "padded")]
    ratios = sorted(a / b for a, b in zip(*rates, strict=True))
    assert figures["continuous_over_padded_demo_fp32"]["value"] == pytest.approx(sum(ratios) / 2)
    assert samples["conditions"]["trace"] == "azure_conv_2023_excerpt.csv"


@pytest.mark.parametrize("command", ["batching", "scheduler"])
def test_command_line_hands_its_options_down(command: str) -> None:
    """`sluice bench` leaves the options, --help too, to the bench."""
    code = "from gateway.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert f"usage: sluice bench {command}" in done.stdout


def test_more_requests_than_the_trace_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A size that cannot be measured is one line on stderr, and writes nothing."""
    assert main([*SMALL, "--requests", "100000", "--out", str(tmp_path)]) == 1
    assert "has no 100000 requests" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())
