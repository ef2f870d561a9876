"""`python -m scheduler.bench`, whole, on the demo model and at the smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.contract import Engine
from engine.cpu.runner import TorchEngine
from scheduler.bench.__main__ import main
from scheduler.bench.engine_bench import GPU_WORKLOADS, WORKLOADS, suite
from scheduler.bench.setup import Options

ROOT = Path(__file__).parents[3]
SMALL = ["--shape", "demo", "--threads", "1", "--rounds", "1", "--scale", "0.01"]


@pytest.mark.thorough
def test_every_workload_beside_its_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The workloads run, what is printed as JSON is what is written, and it has the one shape."""
    # The sweep takes long; it has a test of its own, on a simulated engine.
    chosen = [word for name in WORKLOADS if name != "step-sweep" for word in ("--workload", name)]
    arguments = [*SMALL, *chosen, "--dtype", "float32", "--batch", "1,2", "--json"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    report = json.loads((tmp_path / "engine-cpu.json").read_text())
    assert report["figures"] == printed["figures"]
    assert {"machine", "versions", "commit", "figures", "samples", "parts"} <= set(report)
    figures = report["figures"]
    for name in (
        "copy_gb_per_s",
        "matmul_fp32_gflop_per_s",
        "decode_demo_fp32_b2_output_tokens_per_s",
        "decode_demo_fp32_b2_roofline_share",
        "transformers_demo_b1_fp32_ratio",
        "prefill_demo_fp32_tokens_per_s",
        "mixed_demo_fp32_gap_p99_ms",
        "shared_prefix_demo_fp32_ttft_speedup",
        "nano_demo_fp32_output_tokens_per_s",
        "outside_torch_demo_fp32_b1_share",
        "demo_fp32_1k1k_output_tokens_per_s",
        "demo_fp32_1k1k_roofline_share",
        "demo_fp32_64k_ttft_s",
        "demo_fp32_64k_decode_roofline_share",
        "demo_fp32_uneven_decode_roofline_share",
        "host_demo_fp32_b2_step_share",
        "loop_lag_demo_fp32_p99_ms",
        "trace_demo_fp32_b2_step_us",
        "trace_demo_fp32_prefill_launches",
        "sampling_demo_fp32_top_k_top_p_b2_us",
    ):
        assert figures[name]["value"] > 0, name
    # Goals that are a GPU's are none here.
    assert figures["host_demo_fp32_b2_step_share"]["goal"] is None
    assert all(0 < figures[n]["value"] < 1 for n in figures if n.startswith("outside_torch"))
    [sweep] = [s for title, s in report["samples"].items() if title.startswith("decode-sweep")]
    [traced] = [s for title, s in report["samples"].items() if title.startswith("trace")]
    assert traced["b2"]["rows"][0]["us"] > 0
    [long] = [s for title, s in report["samples"].items() if title.startswith("64k")]
    [uneven] = [s for title, s in report["samples"].items() if title.startswith("uneven")]
    assert (long["num_prompt_tokens"], uneven["num_long_tokens"]) == (655, 328)
    assert len(json.dumps(traced)) < 50_000
    # Trained weights leave no near-ties: the peer computes the same texts.
    assert sweep["b2"]["tokens_equal_to_transformers_share"] > 0.9


def test_table_without_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person gets a table on stdout; data and progress do not mix."""
    arguments = ["--workload", "decode-sweep", "--batch", "2", "--no-peers"]
    assert main([*SMALL, *arguments, "--dtype", "bfloat16", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "decode-sweep demo bfloat16" in out
    assert "batch 2" in out
    assert "figures are in" in err
    report = json.loads((tmp_path / "engine-cpu.json").read_text())
    assert "decode_demo_b2_step_ms" in report["figures"]  # its own dtype needs no name


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "/nowhere"], 1, "/nowhere: no such directory"),
        (["--shape", "nothing"], 2, "invalid choice: 'nothing'"),
        (["--batch", "0"], 2, "must be at least 1"),
        (["--scale", "2"], 2, "at most 1"),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    """A wrong option names itself, and no file is written without a measurement."""
    command = [
        sys.executable,
        "-c",
        "from gateway.cli.main import main; main()",
        *("bench", "engine", "--out", str(tmp_path)),
        *arguments,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_batch_that_the_engine_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch of more rows than a step has is one line on stderr."""
    arguments = ["--workload", "decode-sweep", "--batch", "1000", "--no-peers"]
    assert main([*SMALL, *arguments, "--out", str(tmp_path)]) == 1
    assert "up to the engine's 256 rows" in capsys.readouterr().err.splitlines()[-1]


def test_switches_reach_the_engine_and_the_names_of_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not left to the engine reaches the one that is measured, and its figures say so."""
    configs = []

    def load(config: EngineConfig) -> Engine:
        configs.append(config)
        return TorchEngine(config)

    monkeypatch.setattr("scheduler.bench.setup.load_engine", load)
    arguments = [
        *SMALL,
        "--workload",
        "decode-sweep",
        "--batch",
        "1",
        "--no-peers",
        "--dtype",
        "float32",
    ]
    for switches in ([], ["--dependent-launch"], ["--no-fused-matvec"]):
        assert main([*arguments, *switches, "--out", str(tmp_path)]) == 0
    assert [(config.dependent_launch, config.fused_matvec) for config in configs] == [
        (None, None),
        (True, None),
        (None, False),
    ]
    report = json.loads((tmp_path / "engine-cpu.json").read_text())
    steps = {name for name in report["figures"] if name.endswith("_b1_step_ms")}
    names = ("", "dependent_", "no_matvec_")
    assert steps == {f"decode_demo_fp32_{said}b1_step_ms" for said in names}
    assert {title for title in report["samples"] if title.startswith("decode-sweep")} == {
        f"decode-sweep demo float32{said}" for said in ("", " dependent", " no matvec")
    }


def test_importing_the_bench_loads_no_torch() -> None:
    """The options can be read without torch or transformers."""
    code = (
        "import sys, scheduler.bench.__main__; print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_suite_covers_what_the_documents_quote() -> None:
    """The suite measures both shapes, both dtypes, each shape's profile and the demo's steps."""
    runs = [(o.shape, o.dtype, name) for o, names in suite(Options()) for name in names]
    assert {(shape, dtype) for shape, dtype, _ in runs} == {
        ("llama-30m", "float32"),
        ("llama-30m", "bfloat16"),
        ("qwen3-0.5b", "bfloat16"),
        ("demo", None),
    }
    assert {name for _, _, name in runs} == set(WORKLOADS) - set(GPU_WORKLOADS)
    assert {shape for shape, _, name in runs if name == "profile"} == {"llama-30m", "qwen3-0.5b"}
