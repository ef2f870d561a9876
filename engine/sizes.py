"""Every size of an engine, decided from its config, its model and its device.

What does not fit is refused here in one line, before anything large is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.context import fit_context
from engine.contract import Capability, EngineInfo
from engine.errors import EngineError
from engine.models.attention import KVCacheShape
from engine.models.hf_config import DTYPES, ModelConfig
from engine.probe import bfloat16_wins

_CAPABILITIES = frozenset(
    {
        Capability.LOGPROBS,
        Capability.PROMPT_LOGPROBS,
        Capability.PENALTIES,
        Capability.LOGIT_BIAS,
        Capability.MIN_TOKENS,
        Capability.GRAMMAR,
    }
)
# Logits of prompt tokens held at once: 256 MiB in float32.
_MAX_PROMPT_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True)
class Sizes:
    """Hold what was decided."""

    info: EngineInfo
    kv_cache: KVCacheShape
    dtype: torch.dtype


def fit(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    *,
    kv_cache_bytes: int,
    kv_itemsize: int | None = None,
    num_kv_heads: int | None = None,
    depth: int = 1,
) -> Sizes:
    """Decide every size; the KV cache takes at most `kv_cache_bytes` where blocks are not given.

    Args: `kv_itemsize`: bytes of a value in the cache, where it is not in `dtype`. `num_kv_heads`:
        of the weights that are on this device; None is all of the model's.
    Raises: `EngineError`.
    """
    num_kv_heads = num_kv_heads or model.num_kv_heads
    context = fit_context(
        config,
        model,
        kv_cache_bytes=kv_cache_bytes,
        kv_itemsize=kv_itemsize or dtype.itemsize,
        num_kv_heads=num_kv_heads,
    )
    info = EngineInfo(
        model_type=model.model_type,
        vocab_size=model.vocab_size,
        max_model_len=context.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.step_tokens,
        num_blocks=context.num_blocks,
        block_size=config.block_size,
        eos_token_ids=model.eos_token_ids,
        depth=depth,
        device=config.device,
        dtype=str(dtype).removeprefix("torch."),
        capabilities=_CAPABILITIES,
        model_max_len=model.max_position_embeddings,
        why_shorter=context.why_shorter,
        max_num_prompt_logprobs=max(1, _MAX_PROMPT_LOGITS // model.vocab_size),
    )
    kv_cache = KVCacheShape(
        num_layers=model.num_layers,
        num_blocks=context.num_blocks,
        block_size=config.block_size,
        num_heads=model.num_heads // model.num_kv_heads * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=model.head_dim,
    )
    return Sizes(info, kv_cache, dtype)


def choose_dtype(asked: str | None, saved: str, device: torch.device) -> torch.dtype:
    """Return what a model computes in: what is asked for, or what suits the device.

    Raises: `EngineError`: it is not supported.
    """
    if asked is None:
        if device.type != "cpu":
            return _dtype(saved)
        # Never less precise than the weights; without units for it, bfloat16 is the slower one.
        wins = saved == "bfloat16" and bfloat16_wins()
        return torch.bfloat16 if wins else torch.float32
    if asked not in DTYPES:
        raise EngineError(f"dtype {asked!r} is not supported; choose one of {', '.join(DTYPES)}")
    return _dtype(asked)


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def find_device(name: str) -> torch.device:
    """Return the device of a name. Raises: `EngineError`: there is none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise EngineError(f"no device is called {name!r}; choose cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"no CUDA device is there for device {name!r}; choose cpu")
    if device.type not in ("cpu", "cuda"):
        raise EngineError(f"device {name!r} is not supported; choose cpu or cuda")
    return device
