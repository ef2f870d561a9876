"""Which operations a device gets."""

from __future__ import annotations

import pytest
import torch

from engine.errors import EngineError
from engine.kernels import choose, dependent_operations, triton_operations
from engine.kernels.twins import operations as twins


def test_launches_overlap_where_a_gpu_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper has kernels that overlap where they are asked for; an older GPU is refused then."""
    gpu, capability = torch.device("cuda"), (9, 0)
    monkeypatch.setattr(choose, "can_run_kernels", lambda device: device.type == "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert choose.choose_operations(gpu) is triton_operations
    assert choose.choose_operations(gpu, dependent_launch=True) is dependent_operations
    capability = (8, 9)
    assert choose.choose_operations(gpu) is triton_operations
    with pytest.raises(EngineError, match="dependent_launch needs a GPU of compute capability 9"):
        choose.choose_operations(gpu, dependent_launch=True)


def test_a_cpu_has_twins() -> None:
    """Where nothing is launched, nothing overlaps, whatever is asked for."""
    assert choose.choose_operations(torch.device("cpu"), dependent_launch=True) is twins
