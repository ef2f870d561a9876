"""Every kernel compiles for the GPUs that it is written for, where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.kernels import tuned
from tests.engine.kernels.launch_order import OPENS, PLAIN, WAITS

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("compile_for_hopper.py")
# What a program may take on an H100 or H200, in bytes.
SHARED_MEMORY = 227 << 10
KERNELS = {
    "_add_rms_norm_kernel",
    "_begin_step_kernel",
    "_choose_kernel",
    "_combine_attention",
    "_count_kernel",
    "_decode_attention",
    "_matvec_kernel",
    "_penalise_kernel",
    "_prefill_attention",
    "_quantize_rows_kernel",
    "_race_kernel",
    "_reach_kernel",
    "_rotary_write_kernel",
    "_scan_kernel",
    "_silu_mul_kernel",
}
# Those whose launches overlap, where that is asked for, and the one that they begin with.
DEPENDENT = {
    "_add_rms_norm_kernel",
    "_combine_attention",
    "_decode_attention",
    "_matvec_kernel",
    "_rotary_write_kernel",
    "_silu_mul_kernel",
}
FIRST = "_begin_step_kernel"


@pytest.fixture(scope="module")
def compiled(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Every kernel as operations launch it, compiled for Hopper.

    Those that have not changed are kept from one run of the tests to the next: Triton finds them
    by a hash of their sources, all that they call, and its own version.
    """
    kept = pytestconfig.cache if pytestconfig.pluginmanager.has_plugin("cacheprovider") else None
    cache = kept.mkdir("triton") if kept else tmp_path_factory.mktemp("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_compile_and_fit(compiled: list[dict[str, Any]]) -> None:
    """Each becomes a Hopper program, and fits the shared memory."""
    assert {each["kernel"] for each in compiled} == KERNELS
    assert [each for each in compiled if each["shared"] > SHARED_MEMORY] == []


@pytest.mark.parametrize("kernel", ["_decode_attention", "_prefill_attention"])
def test_attention_reads_ahead(compiled: list[dict[str, Any]], kernel: str) -> None:
    """While it works on a tile, the keys and the values of the next are under way."""
    found = [each for each in compiled if each["kernel"] == kernel and "float32" not in each["key"]]
    assert len({each["key"] for each in found}) >= 5
    assert [each for each in found if each["in_flight"] < 2] == []


def test_waves_are_of_the_programs_that_fit(compiled: list[dict[str, Any]]) -> None:
    """A wave has no more programs for each multiprocessor than fit it, and wastes one at most."""
    decodes = [each for each in compiled if each["kernel"] == "_decode_attention"]
    for each in decodes:
        if "float32" in each["key"]:
            continue
        taken = tuned.settings("decode_pieces", each["key"], torch.device("cpu"))["PROGRAMS"]
        assert taken <= each["num_programs"] <= taken + 2, each


def test_kernels_that_overlap_wait_for_what_they_touch(
    compiled: list[dict[str, Any]],
) -> None:
    """A kernel that begins early touches nothing of others until it has waited; the rest is plain.

    Each is compiled with launches that overlap and without.
    """
    plain = {(name, PLAIN) for name in KERNELS}
    overlapping = {(name, WAITS) for name in DEPENDENT} | {(FIRST, OPENS)}
    assert {(each["kernel"], each["order"]) for each in compiled} == plain | overlapping
