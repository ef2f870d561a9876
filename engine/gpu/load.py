"""Which engine serves a device."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.contract import Engine


def open_engine(config: EngineConfig) -> Engine:
    """Load a model: the GPU's engine for a GPU, the CPU's for a CPU.

    Raises: `ModelError`, `EngineError`: it cannot be served, in one line.
    """
    if config.device.startswith("cuda"):
        from engine.gpu.engine import GpuEngine

        return GpuEngine(config)
    from engine.runner import TorchEngine

    return TorchEngine(config)
