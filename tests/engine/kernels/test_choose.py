"""Which operations a device gets."""

from __future__ import annotations

import pytest
import torch

from engine.errors import EngineError
from engine.kernels import choose, dependent_operations, triton_operations
from engine.kernels.operations import MATVEC_ROWS
from engine.kernels.twins import operations as twins


def test_launches_overlap_where_a_gpu_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper has kernels that overlap, by itself in an engine; an older GPU is refused."""
    gpu, capability = torch.device("cuda"), (9, 0)
    monkeypatch.setattr(choose, "can_run_kernels", lambda device: device.type == "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert choose.choose_operations(gpu) is triton_operations
    assert choose.choose_operations(gpu, dependent_launch=True) is dependent_operations
    assert choose.choose_operations(gpu, dependent_launch=None) is dependent_operations
    capability = (8, 9)
    assert choose.choose_operations(gpu) is triton_operations
    assert choose.choose_operations(gpu, dependent_launch=None) is triton_operations
    with pytest.raises(EngineError, match="dependent_launch needs a GPU of compute capability 9"):
        choose.choose_operations(gpu, dependent_launch=True)


def test_few_rows_are_fused_where_that_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself only Hopper fuses, two rows of a large model; who asks gets it anywhere, or not."""
    gpu, cpu, capability = torch.device("cuda"), torch.device("cpu"), (9, 0)
    monkeypatch.setattr(choose, "can_run_kernels", lambda device: device.type == "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert choose.matvec_rows(gpu, 1024, asked=None) == MATVEC_ROWS
    assert choose.matvec_rows(gpu, 4096, asked=None) == 2
    assert choose.matvec_rows(gpu, 4096, asked=True) == MATVEC_ROWS
    assert choose.matvec_rows(gpu, 1024, asked=False) == 0
    assert choose.matvec_rows(cpu, 1024, asked=None) == 0
    assert choose.matvec_rows(cpu, 1024, asked=True) == MATVEC_ROWS
    capability = (8, 9)
    assert choose.matvec_rows(gpu, 1024, asked=None) == 0


def test_a_cpu_has_twins() -> None:
    """Where nothing is launched, nothing overlaps, whatever is asked for."""
    assert choose.choose_operations(torch.device("cpu"), dependent_launch=True) is twins
