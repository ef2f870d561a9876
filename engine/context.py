"""How long a context is served, and why it is not the model's whole one. Loads no torch.

What somebody asks for is kept or refused; what nobody asked for is as much as the KV cache holds,
and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.models.hf_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Context:
    """Hold what was decided; `why_shorter` is None where the whole of the model's is served."""

    max_model_len: int
    num_blocks: int
    why_shorter: str | None


def fit_context(
    config: EngineConfig,
    model: ModelConfig,
    *,
    kv_cache_bytes: int,
    kv_itemsize: int,
    num_kv_heads: int | None = None,
) -> Context:
    """Decide the longest context and the blocks of the KV cache.

    Args: `kv_cache_bytes`: what the cache may take where the config names no blocks.
        `kv_itemsize`: bytes of a value in it. `num_kv_heads`: of the weights on this device.
    Raises: `EngineError`: a length is asked for that the model or the cache has no room for.
    """
    asked, whole = config.max_model_len, model.max_position_embeddings
    if asked is not None and asked > whole:
        raise EngineError(
            f"max_model_len {asked:,} is beyond the {whole:,} positions of this model; lower it, "
            "or leave it unset"
        )
    wanted = whole if asked is None else asked
    if wanted < 1:
        raise EngineError(f"max_model_len must be at least 1, not {wanted}")
    heads = num_kv_heads or model.num_kv_heads
    values_per_token = 2 * model.num_layers * heads * model.head_dim
    block_bytes = values_per_token * config.block_size * kv_itemsize
    blocks_of_one = -(-wanted // config.block_size)
    num_blocks = config.num_blocks
    if num_blocks is None:
        num_blocks = min(kv_cache_bytes // block_bytes, config.max_num_seqs * blocks_of_one)
    if num_blocks < 1:
        raise EngineError(
            f"the KV cache holds not one block of {block_bytes:,} bytes: raise kv_cache_bytes or "
            "num_blocks"
        )
    # A longer sequence could never run, so callers learn the true limit.
    served = min(wanted, num_blocks * config.block_size)
    needed_bytes = blocks_of_one * block_bytes
    # The setting is of all engines of a process, of which this one has its share.
    enough = f"kv_cache_bytes {math.ceil(needed_bytes / config.kv_share)}"
    if config.kv_share < 1:
        enough += ", or a larger kv_share"
    if config.num_blocks is not None:
        enough = f"num_blocks {blocks_of_one}"
    held = (
        f"a KV cache of {num_blocks * block_bytes:,} bytes holds {num_blocks * config.block_size:,}"
    )
    if asked is not None and served < asked:
        raise EngineError(
            f"max_model_len {asked:,} needs {needed_bytes:,} bytes for its KV cache, and {held} "
            f"tokens: set {enough} at least, or max_model_len {served}"
        )
    why = None
    if served < wanted:
        why = f"{held} tokens; {wanted:,} need {enough}"
    elif served < whole:
        why = f"max_model_len is set to {served:,}"
    return Context(served, num_blocks, why)
