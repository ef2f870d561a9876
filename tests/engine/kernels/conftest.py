"""Where kernels run in tests: compiled on a GPU, and interpreted on the CPU where there is none.

Triton reads TRITON_INTERPRET when it decorates a function, its own library's included, so it must
be set before Triton is first imported; transformers, which other tests use, imports it.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    # What was imported before, to be compiled, is forgotten; its binary part cannot load twice.
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        if not name.startswith("triton._C"):
            del sys.modules[name]


if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    _interpret()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device that the kernels under test run on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
