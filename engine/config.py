"""How an engine is set up. No torch here: the command line reads these before it loads a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.contract import Pooling

DEFAULT_KV_CACHE_BYTES = 1 << 30
GPU_STEP_TOKENS, CPU_STEP_TOKENS = 2048, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Set an engine's sizes; `None` means: chosen from the model and the machine.

    `load_format` is `auto` (safetensors in `model_dir`) or `dummy` (random weights in the shape
    of its config.json, for load tests). `device` is `cpu`, `cuda`, or `auto`: a GPU where torch
    sees one. `block_size` is in tokens. `kv_cache_bytes` bounds the KV pool where `num_blocks`
    does not say; None is 1 GiB on a CPU, and on a GPU what is free, of
    `gpu_memory_utilization` of its memory at most, weights and steps included. `kv_share` is this
    engine's part of either, where a process has several. `weight_dtype` and
    `kv_dtype` are `fp8` or None, which is `dtype`: see `engine.models.quantization`. `num_threads`
    are torch's intra-op threads. `native` is `auto` (the compiled operators where they have been
    built, see `engine.native`) or `off`. `graphs` and `overlap` are of a GPU: whole steps are
    captured and replayed, and a step is launched before the one before has come back.
    `dependent_launch` and `fused_matvec` are of a GPU too; None is where one was measured to gain,
    see `engine.kernels.choose`. With the first small kernels begin while the one before them ends
    (`engine.kernels.dependent_launch`); with the second steps that decode a few tokens norm,
    multiply, gate and add in one kernel (`engine.kernels.matvec`). With `pooling` the model makes
    vectors, on a CPU alone.
    """

    model_dir: Path
    load_format: str = "auto"
    dtype: str | None = None
    device: str = "cpu"
    block_size: int = 64
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    kv_share: float = 1.0
    gpu_memory_utilization: float | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    num_threads: int | None = None
    seed: int = 0
    native: str = "auto"
    graphs: bool = True
    overlap: bool = True
    dependent_launch: bool | None = None
    fused_matvec: bool | None = None
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        if self.block_size not in (16, 32, 64):
            raise ValueError(f"block_size must be 16, 32 or 64, not {self.block_size}")
        if self.load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be auto or dummy, not {self.load_format!r}")
        for name in ("weight_dtype", "kv_dtype"):
            if getattr(self, name) not in (None, "fp8"):
                raise ValueError(f"{name} must be fp8 or None, not {getattr(self, name)!r}")
        if self.step_tokens < 1 or self.max_num_seqs < 1:
            raise ValueError("max_num_batched_tokens and max_num_seqs must be at least 1")
        if self.native not in ("auto", "off"):
            raise ValueError(f"native must be auto or off, not {self.native!r}")
        if not 0 < self.kv_share <= 1:
            raise ValueError(f"kv_share must be above 0 and at most 1, not {self.kv_share}")

    @property
    def pool_bytes(self) -> int:
        """Return what the KV pool may take where nobody asks what is free."""
        return int((self.kv_cache_bytes or DEFAULT_KV_CACHE_BYTES) * self.kv_share)

    @property
    def step_tokens(self) -> int:
        """Return how many tokens a step computes at most.

        A GPU needs many to be busy. A CPU is as fast with 256 as with 2,048, and whoever comes
        during a step waits for its end: a second or more on a model of half a billion parameters.
        """
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return GPU_STEP_TOKENS if self.device.startswith("cuda") else CPU_STEP_TOKENS
