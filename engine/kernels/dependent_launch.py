"""Launches that overlap: a kernel is set up, and reads weights, while the one before it ends.

By itself a GPU begins a kernel when the one before it is over and its memory written back, which
between kernels of two microseconds costs another. A kernel that is launched with `launch_pdl` may
begin as soon as every program of the one before has called `gdc_launch_dependents`, or has ended.
From there to its own `gdc_wait` it runs beside it. The wait ends when that kernel is over, and what
it wrote is there to be read. So, of every kernel that takes `options`:

- *Every program waits, and before it can leave.* What it waits for is its direct predecessor alone.
  That this one has waited too is what puts everything earlier behind it; a grid that ended without
  waiting would let its successor overtake what it should have waited for.
- *Before the wait it stores nothing,* for a kernel before it may still read there: buffers of a
  step take turns in the same memory.
- *Before the wait it reads nothing that a kernel writes.* That leaves the model's parameters, and
  the words that were uploaded with the step: `begin_step` is launched plainly and so begins when
  they have arrived, and everything else of the step follows it.
- *It lets its successor begin right after its own wait.* All its programs are on the device then,
  so that those of the successor take nothing from them; and no more than two kernels overlap, which
  keeps it simple to say who runs beside whom.

A kernel that knows nothing of this, such as one of cuBLAS, is launched plainly: it begins when the
one before it is over, and lets the next begin at its own end. A graph keeps all of it, as edges
between the nodes (CUDA 12.3 and above). An order that is wrong shows in no result of an
interpreter, and seldom on a GPU: a test reads it from the compiled kernels.

Source: "Programmatic Dependent Launch" of the CUDA programming guide; `griddepcontrol` of PTX.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def options(dependent: bool) -> dict[str, bool]:
    """Say how a kernel that waits is launched, for Triton and for the kernel itself."""
    return {"DEPENDENT": True, "launch_pdl": True} if lets_overlap(dependent) else _PLAIN


def lets_overlap(dependent: bool) -> bool:
    """Tell whether launches overlap; where kernels are interpreted there is nothing to overlap."""
    return dependent and not triton.knobs.runtime.interpret


_PLAIN = {"DEPENDENT": False}


@triton.jit
def await_predecessor(DEPENDENT: tl.constexpr) -> None:
    """Wait for the kernel before this one, then let the one behind it begin."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def admit_successor(DEPENDENT: tl.constexpr) -> None:
    """Let the kernel behind this one begin, where this one was launched plainly."""
    if DEPENDENT:
        gdc_launch_dependents()
