"""All operations of a step in Triton: `Operations` on a GPU. Each is compiled when first called."""

from __future__ import annotations

from engine.kernels.attention import attend
from engine.kernels.begin_step import begin_step
from engine.kernels.draw import draw
from engine.kernels.edit_logits import count, penalise
from engine.kernels.matvec import matvec
from engine.kernels.rms_norm import add_rms_norm
from engine.kernels.rotary_write import rotate_and_write
from engine.kernels.silu_mul import silu_mul

__all__ = [
    "add_rms_norm",
    "attend",
    "begin_step",
    "count",
    "draw",
    "matvec",
    "penalise",
    "rotate_and_write",
    "silu_mul",
]
