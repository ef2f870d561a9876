"""Round rows to 8 bits in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FP8).max


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each row so that its largest number is the largest there is in 8 bits, and round.

    A row of zeros has a scale of 1. A row with NaN or infinity gives NaN in every product.
    Returns: float8_e4m3fn, [n, size], and float32 scales, [n, 1]: `x` is values times scales.
    """
    numbers = x.float()
    largest = numbers.abs().amax(dim=-1, keepdim=True)
    # By a tensor: on a GPU torch takes a plain number's reciprocal, and multiplies.
    scales = torch.where(largest == 0, 1.0, largest / torch.full_like(largest, _LARGEST))
    # Nothing exceeds the largest by more than a rounding, which the cast takes back.
    return (numbers / scales).to(FP8), scales
