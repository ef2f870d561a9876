"""Opens the engine of a configuration: the one place that knows which engines there are.

What computes is imported when it is opened, so that this module, and a simulated engine, load no
torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

from engine.config import GPU_STEP_TOKENS, EngineConfig
from engine.context import Context, fit_context
from engine.contract import Engine
from engine.errors import EngineError
from engine.models.hf_config import load_model_config
from engine.quiet_imports import quiet_imports
from engine.simulated import SimulatedEngine
from engine.step_cost import load_profile


def open_engine(config: EngineConfig) -> Engine:
    """Load a model: the GPU's engine for a GPU, the CPU's for a CPU, where vectors are made.

    Raises: `ModelError`, `EngineError`: it cannot be served, in one line.
    """
    _load_torch()
    if config.pooling is not None:
        from engine.cpu.embedder import EmbeddingEngine

        return EmbeddingEngine(replace(config, device="cpu"))
    if config.device == "auto":
        config = replace(config, device=_choose_device())
    if config.device.startswith("cuda"):
        from engine.gpu.engine import GpuEngine

        return GpuEngine(config)
    if config.weight_dtype == "fp8":
        raise EngineError(
            "weight_dtype fp8 needs a GPU: a CPU has no units for 8 bits and only imitates "
            "them, far slower than bfloat16; leave weight_dtype unset, or choose dtype bfloat16"
        )
    from engine.cpu.runner import TorchEngine

    return TorchEngine(config)


def open_simulated(
    config: EngineConfig,
    *,
    profile: str,
    sleep: Callable[[float], None],
    alphabet: Sequence[int] | None = None,
) -> Engine:
    """Price steps by a profile; the shape comes from config.json, and no weights are read.

    Args: `profile`: a name of `engine.step_cost.profile_names`. `sleep`, `alphabet`: as
        `SimulatedEngine` has them.
    Raises: `ModelError`: config.json cannot be read. `FileNotFoundError`: no such profile.
    """
    model = load_model_config(config.model_dir)
    # It holds no keys and values: a cache is as large as all sequences need.
    context = fit_context(config, model, kv_cache_bytes=1 << 62, kv_itemsize=1)
    return SimulatedEngine(
        load_profile(profile),
        vocab_size=model.vocab_size,
        max_model_len=context.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or GPU_STEP_TOKENS,
        num_blocks=context.num_blocks,
        block_size=config.block_size,
        eos_token_ids=model.eos_token_ids,
        sleep=sleep,
        alphabet=alphabet,
        model_max_len=model.max_position_embeddings,
        why_shorter=context.why_shorter,
    )


def planned_context(config: EngineConfig, *, simulated: bool = False) -> Context | None:
    """Return the context that `config` would be served with; None where a GPU's memory decides it.

    Raises: `ModelError`, `EngineError`: as opening does.
    """
    model = load_model_config(config.model_dir)
    if simulated:
        return fit_context(config, model, kv_cache_bytes=1 << 62, kv_itemsize=1)
    device = _choose_device() if config.device == "auto" else config.device
    from engine.sizes import choose_dtype, find_device

    dtype = choose_dtype(config.dtype, model.dtype, find_device(device))
    itemsize = 1 if config.kv_dtype and device.startswith("cuda") else dtype.itemsize
    is_free = config.num_blocks is None and config.kv_cache_bytes is None
    if device.startswith("cuda") and is_free:
        return None
    return fit_context(config, model, kv_cache_bytes=config.pool_bytes, kv_itemsize=itemsize)


def _load_torch() -> None:
    # torch is loaded here, so before it what the CPU's engine would set; see there.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "torch" not in sys.modules:
        with quiet_imports():
            import_module("torch")


def _choose_device() -> str:
    """Take a GPU where torch sees one."""
    _load_torch()
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
