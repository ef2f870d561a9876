"""Draw a token a row as `engine.sampling.sampler` does, with everything on the device.

The sampler plans on the host what a batch needs; here every row takes the way of the most
demanding, so that nothing is read back, and a CUDA graph may capture it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.operations import DrawColumns


def draw(
    logits: Tensor, columns: DrawColumns, slots: Tensor, positions: Tensor, tokens: Tensor
) -> Tensor:
    """Draw one token a row, and store it; see `Operations.draw`."""
    logits = logits.float()
    temperature = columns.temperature[slots][:, None]
    is_random = temperature > 0
    # NaN where any is.
    largest = logits.amax(dim=-1, keepdim=True)
    tempered = (logits - largest) / torch.where(is_random, temperature, 1.0)
    tempered = torch.where(tempered < _threshold(tempered, columns, slots), -torch.inf, tempered)
    noise = _gumbel_noise(columns.seeds[slots], positions, logits.shape[-1])
    chosen = torch.where(is_random, tempered + noise, logits).argmax(dim=-1)
    drawn = torch.where(torch.isfinite(largest[:, 0]), chosen, -1).to(torch.int32)
    tokens[slots, positions] = drawn.clamp(min=0)
    return drawn


def _threshold(tempered: Tensor, columns: DrawColumns, slots: Tensor) -> Tensor:
    """Find the smallest logit that top-k, then top-p, and min-p keep; [num_rows, 1]."""
    vocab_size = tempered.shape[-1]
    top_k, top_p = columns.top_k[slots].long()[:, None], columns.top_p[slots][:, None]
    ordered = tempered.sort(dim=-1, descending=True).values
    last = torch.where(top_k > 0, top_k.clamp(max=vocab_size), vocab_size) - 1
    # Tokens that tie with the k-th survive top-k, so they count towards the mass.
    kept = ordered >= ordered.gather(1, last)
    probabilities = torch.softmax(torch.where(kept, ordered, -torch.inf), dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    nucleus = (before < top_p).sum(dim=-1, keepdim=True) - 1
    nucleus = torch.minimum(last, nucleus.clamp(min=0))
    last = torch.where(top_p < 1, nucleus, last)
    # p >= min_p * p_max, in logarithms; a min_p of 1 keeps exactly the largest, at 0.
    return torch.maximum(ordered.gather(1, last), columns.min_p[slots].log()[:, None])


def _gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Make noise from (seed, position, token id) alone; [num_rows, vocab_size]."""
    keys = _split_mix(_split_mix(seeds) + positions)
    low, high = keys.view(torch.int32).view(-1, 2).unbind(dim=-1)
    bits = torch.arange(vocab_size, dtype=torch.int32, device=seeds.device)
    bits = _mix(bits ^ low[:, None])
    bits = _mix(bits + high[:, None]) & 0x7FFFFFFF
    uniform = bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _split_mix(x: Tensor) -> Tensor:
    """Hash int64 values as if they were unsigned; they wrap on every device."""
    x = x + _signed(0x9E3779B97F4A7C15, 64)
    x = (x ^ _shifted(x, 30, 64)) * _signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ _shifted(x, 27, 64)) * _signed(0x94D049BB133111EB, 64)
    return x ^ _shifted(x, 31, 64)


def _mix(bits: Tensor) -> Tensor:
    """Hash int32 values as if they were unsigned."""
    bits = (bits ^ _shifted(bits, 16, 32)) * 0x7FEB352D
    bits = (bits ^ _shifted(bits, 15, 32)) * _signed(0x846CA68B, 32)
    return bits ^ _shifted(bits, 16, 32)


def _shifted(x: Tensor, count: int, width: int) -> Tensor:
    """Shift right, and zeros in."""
    return (x >> count) & ((1 << (width - count)) - 1)


def _signed(word: int, width: int) -> int:
    return word - (1 << width) if word >> (width - 1) else word
