"""What an exception says that means: there was not enough memory.

torch has a class for it on a GPU alone; on a CPU, in cuBLAS and in oneDNN it is a `RuntimeError`
with a text. NumPy's and C++'s own arrive as `MemoryError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.contract import StepPlan
from engine.errors import EngineOutOfMemory

_TEXTS = (
    "out of memory",  # torch.OutOfMemoryError, the CUDA runtime
    "can't allocate memory",  # torch's allocator on a CPU
    "cannot allocate memory",  # ENOMEM
    "not enough memory",
    "bad_alloc",
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception was raised because memory could not be allocated."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)


@contextmanager
def told_as_out_of_memory(plan: StepPlan) -> Iterator[None]:
    """Raise `EngineOutOfMemory` where launching a plan finds no memory; all else passes."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            message = f"a step of {plan.num_tokens} tokens found no memory"
            raise EngineOutOfMemory(message) from error
        raise
