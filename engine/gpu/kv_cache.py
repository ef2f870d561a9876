"""The paged KV cache on a GPU, and how much of the memory it may have."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.models.attention import KVCacheShape
from engine.models.hf_config import ModelConfig

# What CUDA, cuBLAS and the captured graphs take, beside what a step computes in.
_RESERVED_BYTES = 2 << 30
_RESERVED_SHARE = 0.05


class KVCache:
    """Hold keys and values by layer, each [num_blocks * block_size, num_kv_heads, head_dim].

    Raises: `EngineError`: there is not so much memory.
    """

    def __init__(self, shape: KVCacheShape, *, dtype: torch.dtype, device: torch.device) -> None:
        self.block_size = shape.block_size
        places = shape.num_blocks * shape.block_size
        sizes = (2, shape.num_layers, places, shape.num_kv_heads, shape.head_dim)
        try:
            both = torch.empty(sizes, dtype=dtype, device=device)
        except RuntimeError as error:
            raise EngineError(
                f"a KV cache of {shape.num_blocks} blocks cannot be allocated on {device}; "
                "lower num_blocks or kv_cache_bytes"
            ) from error
        self.keys, self.values = list(both[0]), list(both[1])


def free_bytes(config: EngineConfig, model: ModelConfig, device: torch.device) -> int:
    """Return what is left for the cache once the weights are there, in bytes.

    A step's own memory is that of its largest tensors: hidden states twice, queries, keys and
    values, the MLP's gate and product, and for every row its logits, also as float32, and counts.
    """
    # What loading has used and freed is there again for the cache.
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    of_token = 2 * (4 * model.hidden_size + heads + 3 * model.intermediate_size)
    of_row = model.vocab_size * (2 + 4 + 4 + 2)
    step = config.max_num_batched_tokens * of_token + config.max_num_seqs * of_row
    return max(0, free - step - max(_RESERVED_BYTES, int(total * _RESERVED_SHARE)))
