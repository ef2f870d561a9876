"""What is done to a vector once it is made: cut short, and spelled as bytes. Loads no torch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

_LEAST_LENGTH = 1e-12


def shortened(vector: Sequence[float], size: int) -> array[float]:
    """Keep the first `size` numbers, and give what is left a length of 1 again.

    Source: Kusupati et al., "Matryoshka Representation Learning", 2022.
    """
    kept = np.asarray(vector[:size], np.float64)
    kept /= max(float(np.linalg.norm(kept)), _LEAST_LENGTH)
    return array("f", kept.astype(np.float32).tobytes())


def little_endian(vector: Sequence[float]) -> bytes:
    """Return a vector's numbers as float32, the low byte of each first."""
    return np.asarray(vector, "<f4").tobytes()
