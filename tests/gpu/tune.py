"""Times what kernels are launched with, and what a user may choose, on this device.

The latter are the size of a KV block, and tokens in a step. Nothing reads that answer by itself: it
is what `SLUICE_BLOCK_SIZE` and `SLUICE_MAX_NUM_BATCHED_TOKENS` should be set to for a model of such
a shape here.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from engine.config import EngineConfig
from engine.contract import Engine
from engine.demo import MODEL_DIR
from scheduler.bench.drive import Driver, Job, median_step_s
from scheduler.bench.part import Part, grow
from scheduler.bench.report import Figure
from scheduler.bench.setup import DEMO
from scheduler.bench.shapes import SHAPES, write_config
from tests.gpu.asked import Asked

_BLOCK_SIZES = (16, 32, 64)
_STEP_TOKENS = (512, 2048, 8192)


def run(asked: Asked, name: str) -> Iterator[tuple[str, Part]]:
    """Tune a kernel, or time the sizes that a user may choose."""
    if name == "sizes":
        measured = _time_sizes(asked)
    else:
        # Imported late: it needs Triton.
        from tests.gpu.tune_kernels import tune_kernel

        measured = tune_kernel(asked, name)
    for part in grow(measured):
        yield f"tune {name}", part


def _time_sizes(asked: Asked) -> Iterator[Part]:
    """Time decode steps by block size, then prefills by a step's tokens."""
    shape = DEMO if asked.quick else "qwen3-0.5b" if asked.on_gpu else "llama-30m"
    part = Part(samples={"shape": shape})
    with TemporaryDirectory(prefix="sluice-gpu-") as scratch:
        if asked.quick:
            shutil.copy(MODEL_DIR / "config.json", scratch)
        else:
            write_config(SHAPES[shape], Path(scratch))
        rounds = 1 if asked.quick else 2
        block_sizes: dict[int, list[float]] = {}
        for size in _BLOCK_SIZES:
            if not asked.deadline.passed:
                block_sizes[size] = [_decode_ms(scratch, asked, size) for _ in range(rounds)]
                _state(part, "block_size", "ms", block_sizes, best=min)
                yield part
        step_tokens: dict[int, list[float]] = {}
        for size in _STEP_TOKENS[: 1 if asked.quick else None]:
            if not asked.deadline.passed:
                step_tokens[size] = [_prefill_rate(scratch, asked, size) for _ in range(rounds)]
                _state(part, "max_num_batched_tokens", "tokens/s", step_tokens, best=max)
                yield part


# Any: `min` or `max`.
def _state(part: Part, name: str, unit: str, values: dict[int, list[float]], *, best: Any) -> None:
    medians = {size: median(times) for size, times in values.items()}
    for size, value in medians.items():
        part.figures[f"tune_{name}_{size}"] = Figure(value, unit)
    part.figures[f"tune_best_{name}"] = Figure(best(medians, key=medians.get), "tokens")
    part.samples[name] = values


def _decode_ms(model_dir: str, asked: Asked, block_size: int) -> float:
    """Return the median of a decode step, ms: contexts of about 1,000 tokens, 32 rows."""
    num_rows, num_tokens = (2, 64) if asked.quick else (32, 1000)
    with asked.engine(_config(model_dir, asked, block_size=block_size)) as engine:
        run = Driver(engine).run(_jobs(engine, num_rows, num_tokens, 24))
    return median_step_s(run.decode_steps(num_rows)) * 1000


def _prefill_rate(model_dir: str, asked: Asked, step_tokens: int) -> float:
    """Return prompt tokens/s with steps of so many tokens; the first prompts warm up."""
    num_tokens = 64 if asked.quick else 1024
    with asked.engine(_config(model_dir, asked, max_num_batched_tokens=step_tokens)) as engine:
        Driver(engine).run(_jobs(engine, 1, num_tokens, 1))
        run = Driver(engine).run(_jobs(engine, 16 if asked.on_gpu else 2, num_tokens, 1))
    return run.num_prompt_tokens / run.wall_s


def _config(model_dir: str, asked: Asked, **sizes: int) -> EngineConfig:
    return EngineConfig(
        model_dir=Path(model_dir),
        load_format="dummy",
        device=asked.device,
        kv_cache_bytes=1 << 28 if asked.quick else (20 if asked.on_gpu else 2) << 30,
        **sizes,  # type: ignore[arg-type]
    )


def _jobs(engine: Engine, count: int, num_tokens: int, num_output_tokens: int) -> list[Job]:
    draw = random.Random(count)
    return [
        Job(
            prompt=[draw.randrange(engine.info.vocab_size) for _ in range(num_tokens)],
            num_output_tokens=num_output_tokens,
        )
        for _ in range(count)
    ]
