"""All operations of a step in plain torch: `Operations` on a CPU, and on a GPU without Triton."""

from __future__ import annotations

from engine.kernels.twins.attention import attend
from engine.kernels.twins.begin_step import begin_step
from engine.kernels.twins.draw import draw
from engine.kernels.twins.edits import count, penalise
from engine.kernels.twins.matvec import matvec
from engine.kernels.twins.norms import add_rms_norm, silu_mul
from engine.kernels.twins.rotary_write import rotate_and_write

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
