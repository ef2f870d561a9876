"""Who computes here: Triton's kernels or their torch twins. No other module knows both.

Triton may be absent, and reads TRITON_INTERPRET when it is first imported; so a kernel's module is
imported when it has been chosen, and not with this one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.kernels.operations import Operations
from engine.kernels.twins import operations as twins
from engine.kernels.twins.quantize_rows import quantize_rows as quantize_rows_twin

# Hopper.
_OVERLAPS_CAPABILITY = (9, 0)
# Ampere.
_LEAST_CAPABILITY = (8, 0)
# The twins read rows whole, whatever their pieces.
_TWINS_WAVE = 64


def choose_operations(device: torch.device, *, dependent_launch: bool = False) -> Operations:
    """Return Triton's kernels where they can run, and their twins elsewhere.

    Args: `dependent_launch`: let launches overlap; twins have none.
    Raises: `EngineError`: the GPU is too old for it.
    """
    if not can_run_kernels(device):
        return twins
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


def triton_is_here() -> bool:
    """Tell whether kernels can be compiled, or interpreted."""
    try:
        import triton  # noqa: F401  is what is asked
    except ImportError:
        return False
    return True
