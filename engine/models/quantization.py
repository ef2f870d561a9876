"""Linear layers in 8 bits: half the bytes of a weight to read, twice the rate of its products.

Weights are float8_e4m3fn with a scale for each output channel, made once from what was loaded.
What a layer reads is scaled and rounded the same way token by token, so that one large activation
spoils one token's precision alone. On a GPU the product is cuBLAS's or CUTLASS's own, through
`torch._scaled_mm`; a float32 twin computes the same from the same 8-bit numbers elsewhere. The
embedding and the head stay as they are: their errors would go straight into the logits.

Source: the W8A8 scheme of vLLM and SGLang for fp8 (channel scales by token scales).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.kernels.choose import quantize_rows
from engine.kernels.twins.quantize_rows import quantize_rows as quantize_rows_twin
from engine.models.decoder import Decoder
from engine.models.linear import Linear

# Tensor cores take rows and columns in so many.
_MULTIPLE = 16
_LEAST_CAPABILITY = (8, 9)


def refuse_fp8_without_units(config: EngineConfig, device: torch.device) -> None:
    """Raise `EngineError` where fp8 is asked for and the GPU has no units for it."""
    asked = [name for name in ("weight_dtype", "kv_dtype") if getattr(config, name) == "fp8"]
    if not asked or device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        raise EngineError(
            f"{asked[0]} fp8 needs a GPU of compute capability 8.9 or above, this one has "
            f"{capability[0]}.{capability[1]}; leave it unset"
        )


class Fp8Linear(Linear):
    """Hold a linear layer as 8-bit numbers, [out_features, in_features], and their scales.

    Raises: `EngineError`: its sizes are not in multiples of 16.
    """

    __slots__ = ("scales", "weight")
    has_layouts = False

    def __init__(self, linear: Linear) -> None:
        assert linear.plain is not None, "quantised before a layout is chosen"
        in_features, out_features = linear.plain.shape
        if in_features % _MULTIPLE or out_features % _MULTIPLE:
            raise EngineError(
                f"weight_dtype fp8 needs sizes in multiples of {_MULTIPLE}, not a layer of "
                f"{in_features} to {out_features}; leave weight_dtype unset"
            )
        self.in_features, self.out_features = in_features, out_features
        self.plain = self.packed = self.few_rows = None
        self.max_few_rows = 0
        self.bias = linear.bias
        weight, scales = quantize_rows_twin(linear.plain.t())
        self.weight = weight.contiguous()
        self.scales = scales.view(1, out_features)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it; [n, in_features] → [n, out_features], in x's dtype."""
        values, scales = quantize_rows(x)
        multiply = multiply_scaled if x.is_cuda else multiply_twin
        out = multiply(values, scales, self.weight, self.scales).to(x.dtype)
        return out if self.bias is None else out.add_(self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return `residual` plus the layer's output of `x`; [n, out_features]."""
        return self(x).add_(residual)


def quantize_linears(decoder: Decoder) -> None:
    """Turn every linear layer of a decoder but its head into 8 bits, in place.

    Raises: `EngineError`: a size is not in multiples of 16.
    """
    for index, layer in enumerate(decoder.layers):
        decoder.layers[index] = replace(
            layer,
            qkv=Fp8Linear(layer.qkv),
            out=Fp8Linear(layer.out),
            gate_up=Fp8Linear(layer.gate_up),
            down=Fp8Linear(layer.down),
        )
    if decoder.embedding.is_cuda:
        # The weights that were there before leave room that the KV cache is to find.
        torch.cuda.empty_cache()


def multiply_twin(values: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """Multiply 8-bit rows with 8-bit weights in float32.

    Args: `values`: [n, in_features], `scales`: [n, 1]. `weight`: [out_features, in_features],
        `weight_scales`: [1, out_features]. Returns: [n, out_features].
    """
    return values.float() @ weight.float().t() * scales * weight_scales


def multiply_scaled(
    values: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor
) -> Tensor:
    """Do so with tensor cores, to bfloat16, the one type that scales by row have on a GPU."""
    out: Tensor = torch._scaled_mm(
        values,
        weight.t(),
        scale_a=scales,
        scale_b=weight_scales,
        out_dtype=torch.bfloat16,
        # Sums of 14 bits, as tensor cores make them by themselves, lose what long rows add up.
        use_fast_accum=False,
    )
    return out
