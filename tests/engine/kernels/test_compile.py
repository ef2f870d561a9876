"""Every kernel compiles for the GPUs that it is written for, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    "_find_largest_kernel",
    "_find_noisy_kernel",
    "_penalise_kernel",
    "_prefill_attention",
    "_quantize_rows_kernel",
    "_reach_kernel",
    "_rotary_write_kernel",
    "_silu_mul_kernel",
}


def test_kernels_compile_and_fit(tmp_path: Path) -> None:
    """Each becomes a Hopper program, as operations launch it, and fits the shared memory."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in compiled} == KERNELS
    too_large = [(name, size) for name, size in compiled if int(size) > SHARED_MEMORY]
    assert not too_large
