"""All operations of a step in Triton, with launches that overlap: see `dependent_launch`."""

from __future__ import annotations

from functools import partial

from engine.kernels import triton_operations as plain
from engine.kernels.triton_operations import count, draw, penalise

begin_step = partial(plain.begin_step, dependent=True)
add_rms_norm = partial(plain.add_rms_norm, dependent=True)
rotate_and_write = partial(plain.rotate_and_write, dependent=True)
attend = partial(plain.attend, dependent=True)
silu_mul = partial(plain.silu_mul, dependent=True)
matvec = partial(plain.matvec, dependent=True)

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
