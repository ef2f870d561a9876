"""What steps of real models' shapes cost on this device, as profiles that a scheduler plans with.

The goal is the error on steps that a fit did not see. A profile is written where the engine looks
for them, or below `--out`; it says what it was measured on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scheduler.bench.engine_bench import measure
from scheduler.bench.part import Part
from scheduler.bench.report import Figure
from scheduler.bench.setup import DEMO, Options, describe_device
from tests.gpu.asked import Asked
from tests.gpu.shapes import model_directory

_PROFILES = Path(__file__).parents[2] / "engine" / "profiles"


def run(asked: Asked, model: str) -> Iterator[tuple[str, Part]]:
    """Sweep the steps of a model."""
    options = Options(device=asked.device, rounds=2, dummy=True, graphs=not asked.eager)
    if asked.quick:
        yield from _quick(replace(options, shape=DEMO, dummy=False))
        return
    with model_directory(model) as directory:
        # A profile is for planning, and nobody plans with an engine that captures nothing.
        path = None if asked.eager else profile_path(asked, model)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield from measure(replace(options, model_dir=directory, profile_out=path), ("step-sweep",))


def profile_path(asked: Asked, model: str) -> Path:
    """Name the profile of a model on this device, such as `nvidia-h200-qwen3-8b.json`."""
    name, _ = describe_device(asked.device)
    directory = asked.out / "profiles" if asked.out else _PROFILES
    return directory / f"{name.removeprefix('gpu-')}-{model}.json"


def _quick(options: Options) -> Iterator[tuple[str, Part]]:
    """Sweep few steps: whether it runs, not what it says."""
    few = replace(
        options,
        peers=False,
        num_threads=1,
        step_tokens=32,
        # Enough for one context beside the blocks of a step's own rows.
        kv_cache_bytes=105 << 20,
        ceiling_rounds=1,
    )
    for title, part in measure(few, ("step-sweep",)):
        part.figures = {
            key: Figure(figure.value, figure.unit) for key, figure in part.figures.items()
        }
        yield title, part
