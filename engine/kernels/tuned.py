"""How kernels are launched: what was measured on this GPU with this Triton, else a sound default.

Measured settings lie beside this module, a file a device, in `tuned_settings/`:
`{"triton": {"3.6.0": {"decode_attention": {"d128-bfloat16": {"BLOCK_N": 64, ...}}}}}`. The Triton
version is part of the key as the best setting differs by it, twofold at times. Nothing is ever
tuned while a request waits: a bench sweeps `candidates` and calls `save`. One that saves elsewhere
has its later processes call `look_in`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path

import torch
import triton

DIRECTORY = Path(__file__).with_name("tuned_settings")

Settings = dict[str, int]

# By kernel, then by a pattern of keys; the last that fits counts. With two stages a program waits
# for what it has just asked for, with three a tile of keys and values is under way beside the one
# that it works on. Decode: tiles of 32 KB for heads of 128, so that three programs with two each
# fit a multiprocessor, which is enough to keep a GPU's memory busy. "PROGRAMS" is how many fit;
# `tests/engine/kernels/test_compile.py` counts. Prefill: SGLang's choice on Hopper for 128 rows and
# heads up to 128, 64 keys and 8 warps; 4 warps where heads have 64, or a program 64 rows, as a warp
# group of wgmma takes 64. Float32 is for tests: its tiles are twice as large, and must fit.
_DEFAULTS: dict[str, dict[str, Settings]] = {
    "decode_attention": {
        "*": {"BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
        "*-float32*": {"BLOCK_N": 32, "num_warps": 4, "num_stages": 2},
    },
    "decode_pieces": {
        "*": {"PROGRAMS": 4},
        "d96-*": {"PROGRAMS": 3},
        "d128-*16": {"PROGRAMS": 3},
    },
    "combine_attention": {"*": {"num_warps": 1, "num_stages": 1}},
    "prefill_attention": {
        "*": {"BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
        "d64-*": {"BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
        "*-h1": {"BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
        "*-float32*": {"BLOCK_N": 32, "num_warps": 8, "num_stages": 1},
    },
    # Each line of a tile is a load of 16 bytes that a thread has in flight. A narrow weight has so
    # few lines that fewer a program leave several programs to each multiprocessor.
    "matvec": {
        "*": {"LINES": 8, "COLUMNS": 1024, "num_warps": 4, "num_stages": 1},
        "narrow-*": {"LINES": 4, "COLUMNS": 1024, "num_warps": 4, "num_stages": 1},
    },
}

_trial: dict[str, Settings] = {}
# Where settings are looked up before `DIRECTORY`.
_elsewhere: list[Path] = []


def settings(kernel: str, key: str, device: torch.device) -> Settings:
    """Look up how to launch a kernel; the caller must not change what it gets.

    Args: `kernel`: one of the kernels that have defaults here. `key`: what the best setting depends
        on beside the device, such as the head's size.
    Returns: constants of the kernel (tile sizes), `num_warps` and `num_stages`; of "decode_pieces"
        the programs that a multiprocessor runs at once.
    """
    return _trial.get(kernel) or _lookup(kernel, key, device)


def candidates(kernel: str) -> list[Settings]:
    """List what a bench should time, without what cannot win.

    It must still expect that one does not fit a device's memory: Triton raises `OutOfResources`.
    """
    if kernel == "decode_pieces":
        return [{"PROGRAMS": each} for each in (2, 3, 4, 6, 8)]
    if kernel == "combine_attention":
        return [{"num_warps": warps, "num_stages": 1} for warps in (1, 2, 4, 8)]
    if kernel == "matvec":
        # 16 bytes of bfloat16 a thread and line.
        return [
            {"LINES": lines, "COLUMNS": 256 * warps, "num_warps": warps, "num_stages": 1}
            for lines, warps in product((2, 4, 8, 16), (2, 4, 8))
        ]
    if kernel == "prefill_attention":
        # A warp group is 4 warps; tiles of 128 keys leave no memory for four stages.
        sweep = [
            (keys, warps, stages)
            for keys, warps, stages in product((32, 64, 128), (4, 8), (1, 2, 3, 4))
            if keys * stages < 512
        ]
    else:
        # A tile has 16 rows, so that warps part its keys: 8 a warp at least, and 2 warps have no
        # registers for 128.
        sweep = [
            (keys, warps, stages)
            for keys, warps, stages in product((32, 64, 128), (2, 4, 8), (2, 3, 4))
            if 8 * warps <= keys <= 32 * warps
        ]
    return [
        {"BLOCK_N": keys, "num_warps": warps, "num_stages": stages} for keys, warps, stages in sweep
    ]


def save(
    kernel: str,
    key: str,
    device: torch.device,
    chosen: Settings,
    *,
    directory: Path | None = None,
) -> Path:
    """Keep what a bench found best; other kernels, keys and Triton versions stay.

    Args: `directory`: where; None is beside this module. A new file elsewhere goes on from the one
        that is kept here, so that it can replace it.
    Returns: the file of this device.
    """
    directory = directory or DIRECTORY
    path = directory / f"{_slug(device)}.json"
    known = path if path.exists() else DIRECTORY / path.name
    measured = json.loads(known.read_text()) if known.exists() else {"triton": {}}
    by_kernel = measured["triton"].setdefault(triton.__version__, {})
    by_kernel.setdefault(kernel, {})[key] = chosen
    directory.mkdir(parents=True, exist_ok=True)
    # A process that is killed here leaves settings that can be read.
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(measured, indent=2, sort_keys=True) + "\n")
    os.replace(scratch, path)
    forget()
    return path


def look_in(directory: Path) -> None:
    """Look for settings in `directory` from now on, and where it has none beside this module."""
    _elsewhere[:] = [directory]
    forget()


def forget() -> None:
    """Look files up anew, as they have changed."""
    _lookup.cache_clear()


@contextmanager
def trying(kernel: str, candidate: Settings) -> Iterator[None]:
    """Launch a kernel so, whatever its key, while the context lasts: for benches."""
    _trial[kernel] = candidate
    try:
        yield
    finally:
        del _trial[kernel]


@cache
def _lookup(kernel: str, key: str, device: torch.device) -> Settings:
    for directory in (*_elsewhere, DIRECTORY):
        path = directory / f"{_slug(device)}.json"
        measured = json.loads(path.read_text())["triton"] if path.exists() else {}
        if found := measured.get(triton.__version__, {}).get(kernel, {}).get(key):
            return dict(found)
    fitting = [found for pattern, found in _DEFAULTS[kernel].items() if fnmatchcase(key, pattern)]
    return dict(fitting[-1])


def _slug(device: torch.device) -> str:
    """Name a kind of device as a file, such as "nvidia-h200"."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return "-".join(name.lower().split())
