"""Rotary positions: the frequencies, stretched or not, a table of their angles, the rotation.

Source: Su et al. 2021 (RoFormer), in the half-split layout of Hugging Face's models. Stretching:
Chen et al. 2023 (linear), Peng et al. 2023 (YaRN), Meta's Llama 3.1 (`llama3`), each computed as
in transformers' `modeling_rope_utils.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.models.rope_config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling


class RotaryTable:
    """Hold the cosines and signed sines of all positions, computed once in float32.

    `cos`, `sin`: [num_positions, head_dim].
    """

    def __init__(
        self,
        rope: RopeConfig,
        *,
        head_dim: int,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(rope, head_dim))
        scale = rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0
        cos, sin = angles.cos() * scale, angles.sin() * scale
        # The rotation swaps the halves and negates the second; the table carries the sign.
        self.cos = torch.cat((cos, cos), dim=-1).to(device, dtype)
        self.sin = torch.cat((-sin, sin), dim=-1).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Pick cosines and signed sines; each [num_tokens, 1, head_dim]."""
        cos = self.cos.index_select(0, positions)[:, None]
        sin = self.sin.index_select(0, positions)[:, None]
        return cos, sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to `x`; [num_tokens, num_heads, head_dim]."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, sin)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Compute the angle that each pair of dimensions turns by a token; [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return frequencies
        case LinearScaling(factor=factor):
            return frequencies / factor
        case Llama3Scaling():
            return _llama3(frequencies, rope.scaling)
        case YarnScaling():
            return _yarn(frequencies, rope.scaling, rope.theta)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # How often each pair turns within the context that the model was first trained on.
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _yarn(frequencies: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    head_dim = 2 * len(frequencies)

    def dimension(num_turns: float) -> float:
        """Find where a pair turns `num_turns` times within the original context."""
        wavelength = scaling.original_max_positions / (num_turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(len(frequencies)) - low) / (high - low)).clamp(0, 1)
    return frequencies * (1 - stretched) + frequencies / scaling.factor * stretched
