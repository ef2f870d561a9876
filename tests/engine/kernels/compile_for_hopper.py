"""Compile every kernel for Hopper as it would be launched, without a GPU; a program of its own.

The operations run on tensors of the CPU, with a driver that names a Hopper GPU and launches
nothing. It prints a line of JSON for each kernel that was compiled: what it takes of a
multiprocessor, how many of its loads a loop leaves under way while it works, and how it goes with
the kernel before it, as `launch_order` has it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from engine.kernels import dependent_operations, triton_operations
from engine.kernels.attention_tile import tile_key
from engine.kernels.operations import DrawColumns, Operations, PenaltyColumns, StepInputs
from engine.kernels.quantize_rows import quantize_rows
from tests.engine.kernels.launch_order import judge

# What kernels read that no kernel writes: the model's parameters, and the words of a step.
EARLY = {
    "_add_rms_norm_kernel": {"weight"},
    "_combine_attention": {"piece_starts"},
    "_decode_attention": {"piece_rows"},
    "_matvec_kernel": {"weight", "bias"},
    "_rotary_write_kernel": {"cos", "sin", "qk_norm", "token_rows", "positions", "slots"},
}

NUM_BLOCKS = 64
NUM_SLOTS = 8
VOCAB_SIZE = 151_936
# Of an H100 or H200: shared memory of a multiprocessor, and of it what each program costs beside
# its own; registers.
MULTIPROCESSOR_BYTES, RESERVED_BYTES, REGISTERS = 228 << 10, 1 << 10, 65_536
# Of what is being compiled, as keys of tuned settings name it.
key_of = [""]


class NoGPU:
    """Stand in for Triton's driver."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def compile_instead_of_launching() -> None:
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        order = judge(
            kernel.asm["ptx"],
            kernel.src.signature,
            EARLY.get(self.__name__, set()),
            overlaps=kernel.metadata.launch_pdl,
        )
        described = {"kernel": self.__name__, "key": key_of[0], "order": order, **describe(kernel)}
        sys.stdout.write(json.dumps(described) + "\n")

    triton.runtime.driver.set_active(NoGPU())
    JITFunction.run = run


def describe(kernel: Any) -> dict[str, int]:
    """Read a compiled kernel.

    `in_flight`: copies to shared memory that are still under way when a turn of a loop begins to
    work with what it has waited for; 0 where there is no such loop, or it waits for all.
    `num_programs`: how many a multiprocessor runs at once, by shared memory and registers.
    """
    waits = re.findall(r"cp\.async\.wait_group\s+(\d+)", kernel.asm["ptx"])
    num_registers = count_registers(kernel.asm["cubin"])
    threads = 32 * kernel.metadata.num_warps
    by_memory = MULTIPROCESSOR_BYTES // (kernel.metadata.shared + RESERVED_BYTES)
    return {
        "shared": kernel.metadata.shared,
        "num_registers": num_registers,
        "in_flight": max(map(int, waits), default=0),
        "num_programs": min(by_memory, REGISTERS // (num_registers * threads)),
    }


def count_registers(cubin: bytes) -> int:
    """Ask Triton's own tool how many registers a thread has; they come by eights."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+)", usage)
    assert found is not None, usage
    return -(-int(found.group(1)) // 8) * 8


def ints(*sizes: int) -> Tensor:
    return torch.zeros(sizes, dtype=torch.int32)


def make_inputs() -> StepInputs:
    return StepInputs(
        slots=ints(4),
        query_starts=ints(5),
        context_lens=ints(4),
        token_rows=ints(32),
        positions=ints(32),
        tiles=ints(3, 2),
        piece_rows=ints(68),
        piece_starts=ints(5),
        block_tables=ints(NUM_SLOTS + 1, NUM_BLOCKS),
        block_columns=ints(4),
        new_blocks=ints(4),
        tokens=ints(NUM_SLOTS + 1, 1025),
    )


def compile_layer(
    operations: Operations,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    cache: torch.dtype,
    block_size: int,
    *windows: int | None,
) -> None:
    """Compile what a decoder's layer takes, for heads and numbers of one kind.

    Args: `windows`: of attention; each is compiled.
    """
    key_of[0] = tile_key(torch.empty(0, num_kv_heads, head_dim, dtype=cache), dtype)
    inputs = make_inputs()
    hidden = torch.zeros(32, 1024, dtype=dtype)
    operations.add_rms_norm(hidden, hidden, hidden[0], 1e-6)
    operations.add_rms_norm(hidden, None, hidden[0], 1e-6)
    operations.add_rms_norm(hidden, hidden, hidden[0], 1e-6, ints(4))
    operations.begin_step(hidden, inputs)
    operations.silu_mul(hidden)
    qkv = torch.zeros(32, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)
    angles = torch.zeros(64, head_dim, dtype=dtype)
    k_cache = torch.zeros(NUM_BLOCKS * block_size, num_kv_heads, head_dim, dtype=cache)
    for qk_norm in (None, qkv[0, : num_heads + num_kv_heads]):
        q = operations.rotate_and_write(
            qkv,
            qk_norm,
            1e-6,
            angles,
            angles,
            inputs,
            k_cache,
            k_cache,
            block_size=block_size,
        )
    for window in windows:
        operations.attend(q, k_cache, k_cache, inputs, block_size=block_size, window=window)


def compile_products(operations: Operations, dtype: torch.dtype, num_rows: int) -> None:
    """Compile a layer's products of a few rows, and the head's."""
    hidden = torch.zeros(num_rows, 1024, dtype=dtype)
    wide = torch.zeros(num_rows, 2816, dtype=dtype)
    weight = torch.zeros(2816, 1024, dtype=dtype)
    norm, bias = weight[0], wide[0]
    operations.matvec(hidden, weight, bias, norm=norm, eps=1e-6)
    operations.matvec(hidden, weight, norm=norm, eps=1e-6, gated=True)
    operations.matvec(wide, weight.view(1024, 2816), residual=hidden)
    operations.matvec(hidden, weight, norm=norm, eps=1e-6, rows=ints(num_rows), out=wide)


def compile_sampling(logits: Tensor) -> None:
    """Compile what follows the decoder."""
    floats = torch.zeros(NUM_SLOTS + 1)
    draws = DrawColumns(
        temperature=floats,
        top_k=ints(NUM_SLOTS + 1),
        top_p=floats,
        min_p=floats,
        seeds=torch.zeros(NUM_SLOTS + 1, dtype=torch.int64),
    )
    penalties = PenaltyColumns(
        repetition=floats,
        frequency=floats,
        presence=floats,
        counts=torch.zeros(NUM_SLOTS + 1, logits.shape[1], dtype=torch.int16),
    )
    slots = ints(len(logits))
    tokens = ints(NUM_SLOTS + 1, 1025)
    token_ids = triton_operations.draw(logits, draws, slots, slots, tokens)
    triton_operations.penalise(logits.float(), penalties, slots)
    triton_operations.count(penalties, slots, token_ids)


if __name__ == "__main__":
    compile_instead_of_launching()
    half, single, eight = torch.bfloat16, torch.float32, torch.float8_e4m3fn
    # With the window and without is one of each pair: both for the numbers and the heads that most
    # models have, and by turns for others, so that either meets each kind of numbers and of blocks.
    compile_layer(triton_operations, 16, 8, 128, half, half, 64, None, 128)
    compile_layer(triton_operations, 32, 8, 128, half, eight, 32, 128)
    compile_layer(triton_operations, 14, 2, 64, half, eight, 64, None)
    compile_layer(triton_operations, 14, 2, 64, half, half, 64, 128)
    compile_layer(triton_operations, 8, 8, 96, half, half, 16, 128)
    compile_layer(triton_operations, 8, 4, 32, single, single, 32, 128)
    compile_layer(triton_operations, 8, 4, 128, single, single, 16, None)
    compile_layer(dependent_operations, 16, 8, 128, half, half, 64, 128)
    compile_products(triton_operations, half, 4)
    compile_products(triton_operations, single, 3)
    compile_products(dependent_operations, half, 1)
    for size in (1024, 14_336):
        quantize_rows(torch.zeros(4, size, dtype=torch.bfloat16))
    # Few rows and many, of which programs have one part and several; and what tiny models have. The
    # wider numbers where there is more to hold, the others once.
    for num_rows, vocab_size, dtype in (
        (4, VOCAB_SIZE, single),
        (40, VOCAB_SIZE, single),
        (4, 1, half),
    ):
        compile_sampling(torch.zeros(num_rows, vocab_size, dtype=dtype))
