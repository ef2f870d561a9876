"""The compiled loops over a scheduler's rows: built with the operators, loaded without torch.

What they compute, and over which columns, is said in `scheduler.running.row_kernel`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from ctypes import c_double, c_int64, c_void_p
from pathlib import Path

from engine.native.compiler import build_once, name_library, one_line, why_not_ours

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "rows"
# Nothing that changes a last digit: they agree with Python's own to that.
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")


class PickStep(ctypes.Structure):
    """Be `SluicePick` of `rows.cpp`."""

    _fields_ = (
        ("accounts", c_void_p),
        ("num_tokens", c_void_p),
        ("turns", c_void_p),
        ("due_s", c_void_p),
        ("part_of", c_void_p),
        ("num_parts", c_int64),
        ("credit_s", c_void_p),
        ("num_credits", c_int64),
        ("row_s", c_double),
        ("context_s", c_double),
        ("must_before_s", c_double),
        ("num_steps", c_int64),
        ("max_steps_out", c_int64),
        ("held", c_void_p),
        ("num_held", c_int64),
        ("chosen", c_void_p),
        ("some_promised_out", c_int64),
    )


class TakeStep(ctypes.Structure):
    """Be `SluiceRows` of `rows.cpp`."""

    _fields_ = (
        ("num_slots", c_int64),
        *(
            (name, c_void_p)
            for name in (
                "epochs",
                "accounts",
                "num_tokens",
                "num_known",
                "limit",
                "num_prompt",
                "num_cached",
                "num_held",
                "held",
                "ends_as_model",
                "own",
                "growth",
                "is_held",
                "due_s",
                "paced_s",
                "tpot_s",
                "gap_s",
                "is_end",
                "values",
                "served",
                "weights",
            )
        ),
        ("has_organisations", c_int64),
        ("now", c_double),
        ("row", c_double),
        ("context_token", c_double),
        ("held_token", c_double),
        ("has_promises", c_int64),
        *(
            (name, c_void_p)
            for name in (
                "tenants",
                "costs",
                "going",
                "tokens",
                "cached",
                "drawn",
                "ended",
                "bands",
                "band_costs",
            )
        ),
        ("num_tenants", c_int64),
        ("num_going", c_int64),
        ("num_bands", c_int64),
    )


@functools.cache
def load_rows() -> ctypes.PyDLL | None:
    """Load the library if it has been built; None where Python is to do it.

    Calls keep the interpreter's lock: they take microseconds, and getting it back may take more.
    """
    path = rows_path()
    if not path.exists():
        return None
    try:
        if reason := why_not_ours(path):
            logger.warning("%s is not used, Python does its work: %s", path, reason)
            return None
        library = ctypes.PyDLL(str(path))
        for name in ("sluice_pick", "sluice_take_rows"):
            getattr(library, name).restype = ctypes.c_int64
    except (OSError, AttributeError) as error:
        logger.warning("%s cannot be used, Python does its work: %s", path, one_line(error))
        return None
    return library


def build_rows() -> Path:
    """Compile the library unless it is there, and return its path; raises `BuildFailed`."""
    path = rows_path()
    build_once(path, lambda out: [*_FLAGS, str(_SOURCES / "rows.cpp"), "-o", str(out)])
    load_rows.cache_clear()
    return path


def rows_path() -> Path:
    """Name the file that a build for this machine and source makes."""
    return name_library(_FLAGS, _SOURCES)
