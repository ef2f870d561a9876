"""The paged KV cache on a GPU, and how much of the memory it may have."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.models.attention import KVCacheShape
from engine.models.decoder import Decoder

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


def free_bytes(
    config: EngineConfig, decoder: Decoder, device: torch.device, *, others_bytes: int = 0
) -> int:
    """Return what is left for the cache once the weights are on this device, in bytes.

    `others_bytes` are what this process's other engines held before these weights were loaded: a
    share is of the card, whoever came first.
    """
    # What loading has used and freed is there again for the cache.
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    step = step_bytes(decoder, config.step_tokens, config.max_num_seqs)
    room = free - max(_RESERVED_BYTES, int(total * _RESERVED_SHARE))
    if config.gpu_memory_utilization is not None or config.kv_share < 1:
        # A share for this engine alone: another's memory is not in it.
        allowed = int(total * (config.gpu_memory_utilization or 1.0) * config.kv_share)
        room = min(room, allowed - (torch.cuda.memory_reserved(device) - others_bytes))
    return max(0, room - step)


def step_bytes(decoder: Decoder, num_tokens: int, num_rows: int) -> int:
    """Count what a step computes in, by the weights that are on this device.

    Of every token it is the largest tensors: hidden states twice, queries, keys and values, the
    MLP's gate and product; of every row its logits, also as float32, and counts.
    """
    layer = decoder.layers[0]
    heads = layer.qkv.out_features + layer.out.in_features
    mlp = layer.gate_up.out_features + layer.down.in_features
    of_token = 2 * (4 * layer.qkv.in_features + heads + mlp)
    return num_tokens * of_token + num_rows * decoder.head.out_features * (2 + 4 + 4 + 2)
