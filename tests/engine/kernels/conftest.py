"""Where kernels run in tests: compiled on a GPU, and interpreted on the CPU where there is none.

Triton reads TRITON_INTERPRET when it decorates a function, its own library's included, so it must
be set before Triton is first imported; transformers, which other tests use, imports it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    # What was imported before, to be compiled, is forgotten; its binary part cannot load twice.
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        if not name.startswith("triton._C"):
            del sys.modules[name]


def _remap_once() -> None:
    """Let Triton remap its language once for each launch and module, not for each function's call.

    To look for what is left to remap takes a third of the time that most kernels are interpreted.
    """
    from triton.runtime import interpreter

    remap, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    remapped: set[int] = set()

    # Any: Triton has no types.
    def remap_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in remapped:
            return None
        remapped.add(module)
        return remap(function)

    def launch_afresh(self: Any, *args: Any, **options: Any) -> None:
        # In the end a launch puts the language back.
        remapped.clear()
        launch(self, *args, **options)

    interpreter._patch_lang = remap_once
    interpreter.GridExecutor.__call__ = launch_afresh


if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    _interpret()
if os.environ.get("TRITON_INTERPRET") == "1":
    _remap_once()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device that the kernels under test run on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
