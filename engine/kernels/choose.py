"""Who computes here: Triton's kernels or their torch twins. No other module knows both.

Triton may be absent, and reads TRITON_INTERPRET when it is first imported; so a kernel's module is
imported when it has been chosen, and not with this one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.kernels.operations import MATVEC_ROWS, Operations
from engine.kernels.twins import operations as twins
from engine.kernels.twins.quantize_rows import quantize_rows as quantize_rows_twin

# Hopper: the first whose launches can overlap, and what the choices here were measured on.
_OVERLAPS_CAPABILITY = (9, 0)
# Up to here launches that overlap gain: 8 and 32 rows of Qwen3-8B went from 73 and 77 % of the
# roofline to 75 and 79 on an H200, 128 and 256 rows from 83 and 88 to 82 and 85: programs that
# wait take up room.
OVERLAPPING_TOKENS = 32
# Up to this hidden size a step of few rows is launches more than weights, so that fewer launches
# gain at 4 rows as well; above it cuBLAS reads weights for 4 rows faster (H200: 1.10 ms instead of
# 1.4 at 1,024, 5.9 instead of 5.3 at 4,096), and 2 gain.
_SMALL_HIDDEN_SIZE = 1024
_LARGE_MATVEC_ROWS = 2
# Ampere.
_LEAST_CAPABILITY = (8, 0)
# The twins read rows whole, whatever their pieces.
_TWINS_WAVE = 64


def choose_operations(device: torch.device, *, dependent_launch: bool | None = False) -> Operations:
    """Return Triton's kernels where they can run, and their twins elsewhere.

    Args: `dependent_launch`: let launches overlap; None: on Hopper, for steps of up to
        `OVERLAPPING_TOKENS`. Twins have none.
    Raises: `EngineError`: the GPU is too old for it.
    """
    if not can_run_kernels(device):
        return twins
    if dependent_launch is None:
        dependent_launch = _is_hopper(device)
    if dependent_launch:
        if torch.cuda.get_device_capability(device) < _OVERLAPS_CAPABILITY:
            raise EngineError("dependent_launch needs a GPU of compute capability 9.0 or above")
        from engine.kernels import dependent_operations

        return dependent_operations
    from engine.kernels import triton_operations

    return triton_operations


def decode_wave(k_cache: Tensor, dtype: torch.dtype) -> int:
    """Count the pieces of contexts that decode attention reads at once on the cache's device.

    Args: `k_cache`: of one layer, with the key heads that this device holds. `dtype`: of queries.
    """
    if not can_run_kernels(k_cache.device):
        return _TWINS_WAVE
    from engine.kernels.attention_decode import wave

    return wave(k_cache, dtype)


def matvec_rows(device: torch.device, hidden_size: int, *, asked: bool | None) -> int:
    """Count the rows up to which a step's products are fused.

    Args: `asked`: whether they are to be, for as many rows as there can be; None: where a step of
        that size was measured to gain.
    """
    if asked is not None:
        return MATVEC_ROWS if asked else 0
    if not (can_run_kernels(device) and _is_hopper(device)):
        return 0
    return MATVEC_ROWS if hidden_size <= _SMALL_HIDDEN_SIZE else _LARGE_MATVEC_ROWS


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows to 8 bits; see the twin, which is what runs without Triton."""
    if not (x.is_cuda and triton_is_here()):
        return quantize_rows_twin(x)
    from engine.kernels import quantize_rows as kernel

    return kernel.quantize_rows(x)


def can_run_kernels(device: torch.device) -> bool:
    """Tell whether a device is one that Triton's kernels are for: a GPU with bfloat16 products."""
    if device.type != "cuda" or not triton_is_here():
        return False
    return torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == _OVERLAPS_CAPABILITY[0]


def triton_is_here() -> bool:
    """Tell whether kernels can be compiled, or interpreted."""
    try:
        import triton  # noqa: F401  is what is asked
    except ImportError:
        return False
    return True
