"""The decoder over kernels that do several things at once: ten launches a layer.

It computes what `engine.models.decoder` does, from the same weights. The residual stream is added
where it is normed, keys and values are stored where they are rotated. A step of a few tokens can do
with seven launches: its products norm what they read, gate and add, see `Operations.matvec`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.gpu.kv_cache import KVCache
from engine.kernels.operations import MATVEC_ROWS, Operations, StepInputs
from engine.models.decoder import Decoder, Layer
from engine.models.linear import Linear


class FusedDecoder:
    """Turn token ids into logits; a forward reads nothing from the host but its arguments.

    Steps of up to `matvec_rows` tokens have fused products, `MATVEC_ROWS` at most. Weights of 8
    bits have no such products, and go the plain way.
    """

    def __init__(
        self,
        decoder: Decoder,
        operations: Operations,
        cache: KVCache,
        *,
        matvec_rows: int = 0,
    ) -> None:
        self._decoder = decoder
        self._operations = operations
        self._cache = cache
        assert matvec_rows <= MATVEC_ROWS
        self._matvec_rows = 0 if decoder.layers[0].qkv.plain is None else matvec_rows

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
        if max(len(x), len(logit_rows)) <= self._matvec_rows:
            return self._forward_few(x, inputs, logit_rows, out)
        residual: Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            x, residual = operations.add_rms_norm(x, residual, layer.input_norm, eps)
            x = self._attend(index, layer, x, inputs)
            x, residual = operations.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.down(operations.silu_mul(layer.gate_up(x)))
        x, _ = operations.add_rms_norm(x, residual, decoder.norm, eps, rows=logit_rows)
        return decoder.head.into(out, x)

    def _forward_few(
        self, x: Tensor, inputs: StepInputs, logit_rows: Tensor, out: Tensor
    ) -> Tensor:
        """Do so with fused products; `x`, the embeddings, is where the residual stream begins."""
        decoder, matvec = self._decoder, self._operations.matvec
        eps = decoder.config.rms_norm_eps
        for index, layer in enumerate(decoder.layers):
            qkv = matvec(x, *_parts(layer.qkv), norm=layer.input_norm, eps=eps)
            attended = self._attend_heads(index, layer, qkv, inputs)
            x = matvec(attended, *_parts(layer.out), residual=x)
            gated = matvec(x, *_parts(layer.gate_up), norm=layer.mlp_norm, eps=eps, gated=True)
            x = matvec(gated, *_parts(layer.down), residual=x)
        return matvec(
            x, *_parts(decoder.head), norm=decoder.norm, eps=eps, rows=logit_rows, out=out
        )

    def _attend(self, index: int, layer: Layer, x: Tensor, inputs: StepInputs) -> Tensor:
        return layer.out(self._attend_heads(index, layer, layer.qkv(x), inputs))

    def _attend_heads(self, index: int, layer: Layer, qkv: Tensor, inputs: StepInputs) -> Tensor:
        decoder, cache = self._decoder, self._cache
        keys, values = cache.keys[index], cache.values[index]
        q = self._operations.rotate_and_write(
            # As many heads as there are weights for.
            qkv.view(qkv.shape[0], -1, keys.shape[-1]),
            layer.qk_norm,
            decoder.config.rms_norm_eps,
            decoder.rotary.cos,
            decoder.rotary.sin,
            inputs,
            keys,
            values,
            block_size=cache.block_size,
        )
        return self._operations.attend(
            q, keys, values, inputs, block_size=cache.block_size, window=layer.window
        )


def _parts(linear: Linear) -> tuple[Tensor, Tensor | None]:
    """Give the weight of a layer by line, and its bias."""
    assert linear.plain is not None
    return linear.plain.t(), linear.bias
