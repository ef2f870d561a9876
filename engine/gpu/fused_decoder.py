"""The decoder over kernels that do several things at once: ten launches a layer.

It computes what `engine.models.decoder` does, from the same weights. The residual stream is added
where it is normed, keys and values are stored where they are rotated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.gpu.kv_cache import KVCache
from engine.kernels.operations import Operations, StepInputs
from engine.models.decoder import Decoder, Layer


class FusedDecoder:
    """Turn token ids into logits; a forward reads nothing from the host but its arguments."""

    def __init__(self, decoder: Decoder, operations: Operations, cache: KVCache) -> None:
        self._decoder = decoder
        self._operations = operations
        self._cache = cache

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, logit_rows: Tensor, out: Tensor) -> Tensor:
        """Run a batch.

        Args: `logit_rows`: the tokens whose logits are wanted, int32, [n]. `out`: where the logits
            go, in the model's dtype, [n, vocab_size].
        Returns: `out`.
        """
        decoder, operations = self._decoder, self._operations
        eps = decoder.config.rms_norm_eps
        x = operations.begin_step(decoder.embedding, inputs)
        residual: Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            x, residual = operations.add_rms_norm(x, residual, layer.input_norm, eps)
            x = self._attend(index, layer, x, inputs)
            x, residual = operations.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.down(operations.silu_mul(layer.gate_up(x)))
        x, _ = operations.add_rms_norm(x, residual, decoder.norm, eps, rows=logit_rows)
        return decoder.head.into(out, x)

    def _attend(self, index: int, layer: Layer, x: Tensor, inputs: StepInputs) -> Tensor:
        decoder, cache = self._decoder, self._cache
        keys, values = cache.keys[index], cache.values[index]
        q = self._operations.rotate_and_write(
            # As many heads as there are weights for.
            layer.qkv(x).view(x.shape[0], -1, keys.shape[-1]),
            layer.qk_norm,
            decoder.config.rms_norm_eps,
            decoder.rotary.cos,
            decoder.rotary.sin,
            inputs,
            keys,
            values,
            block_size=cache.block_size,
        )
        attended = self._operations.attend(
            q, keys, values, inputs, block_size=cache.block_size, window=layer.window
        )
        return layer.out(attended)
