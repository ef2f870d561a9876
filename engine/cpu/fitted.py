"""What both engines of a CPU begin with: a model's shape, what it computes in, and its room."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.config import EngineConfig
from engine.contract import EngineInfo
from engine.cpu.attention import ReferenceAttention
from engine.cpu.slot_table import SlotTable
from engine.errors import EngineError
from engine.models.attention import AttentionBackend
from engine.models.hf_config import ModelConfig, load_model_config
from engine.native.attention import NativeAttention
from engine.probe import choose_num_threads
from engine.sizes import Sizes, choose_dtype, find_device, fit


@dataclass(frozen=True, slots=True)
class Fitted:
    """Hold a model's configuration, as long as is served, with its device, dtype and sizes."""

    model: ModelConfig
    device: torch.device
    dtype: torch.dtype
    sizes: Sizes


def fit_to_cpu(config: EngineConfig, device: torch.device, *, is_headless: bool = False) -> Fitted:
    """Read a model's configuration, choose torch's threads and decide every size.

    Raises: `ModelError`: the directory cannot be served. `EngineError`: the sizes do not fit.
    """
    model = load_model_config(config.model_dir, is_headless=is_headless)
    torch.set_num_threads(config.num_threads or choose_num_threads())
    dtype = choose_dtype(config.dtype, model.dtype, device)
    sizes = fit(config, model, dtype, kv_cache_bytes=config.pool_bytes)
    # Nothing longer runs here, so no table of positions need be longer.
    model = replace(model, max_position_embeddings=sizes.info.max_model_len)
    return Fitted(model, device, dtype, sizes)


def cpu_device(name: str = "cpu") -> torch.device:
    """Find a device that is a CPU. Raises: `EngineError`: none is called so."""
    device = find_device(name)
    assert device.type == "cpu", "a GPU has an engine of its own, `engine.gpu`"
    return device


def allocate_attention(sizes: Sizes, *, native: bool) -> AttentionBackend:
    """Make the KV cache, and what reads it. Raises: `EngineError`: it cannot be allocated."""
    try:
        if native:
            return NativeAttention(sizes.kv_cache, dtype=sizes.dtype)
        return ReferenceAttention(sizes.kv_cache, dtype=sizes.dtype)
    # torch has no class of its own for a CPU that is out of memory.
    except RuntimeError as error:
        raise EngineError(
            f"a KV cache of {sizes.info.num_blocks} blocks cannot be allocated on cpu; "
            "lower num_blocks or kv_cache_bytes"
        ) from error


def slots_for(info: EngineInfo) -> SlotTable:
    """Make the table of an engine's slots."""
    return SlotTable(
        max_num_seqs=info.max_num_seqs,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        vocab_size=info.vocab_size,
        # What is beyond the vocabulary is never drawn, and has no logit to hide.
        eos_token_ids=frozenset(
            token_id for token_id in info.eos_token_ids if token_id < info.vocab_size
        ),
    )
