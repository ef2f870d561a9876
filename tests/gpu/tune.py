"""Times what a user may choose, on this device: the size of a KV block, and tokens in a step.

Nothing reads the answer by itself: it is what `SLUICE_BLOCK_SIZE` and
`SLUICE_MAX_NUM_BATCHED_TOKENS` should be set to for a model of such a shape here.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from engine.config import EngineConfig
from engine.contract import Engine
from scheduler.bench.drive import Driver, Job, median_step_s
from scheduler.bench.part import Part
from scheduler.bench.report import Figure
from scheduler.bench.setup import load_engine
from scheduler.bench.shapes import SHAPES, write_config
from tests.gpu.asked import Asked
from tests.gpu.tune_kernels import tune_kernels

_BLOCK_SIZES = (16, 32, 64)
_STEP_TOKENS = (512, 2048, 8192)


def run(asked: Asked) -> Part:
    """Tune the kernels; time decode steps by block size, then prefills by a step's tokens."""
    device, quick = asked.device, asked.quick
    name = "llama-30m" if quick or device == "cpu" else "qwen3-0.5b"
    part = Part(samples={"shape": name})
    tune_kernels(asked, part)
    with TemporaryDirectory(prefix="sluice-gpu-") as scratch:
        write_config(SHAPES[name], Path(scratch))
        rounds = 1 if quick else 2
        block_sizes = {
            size: [_decode_ms(scratch, device, size, quick=quick) for _ in range(rounds)]
            for size in _BLOCK_SIZES
            if not asked.deadline.passed
        }
        _state(part, "block_size", "ms", block_sizes, best=min)
        step_tokens: dict[int, list[float]] = {}
        for size in _STEP_TOKENS[: 1 if quick else None]:
            if not asked.deadline.passed:
                step_tokens[size] = [
                    _prefill_rate(scratch, device, size, quick=quick) for _ in range(rounds)
                ]
        _state(part, "max_num_batched_tokens", "tokens/s", step_tokens, best=max)
    return part


# Any: `min` or `max`.
def _state(part: Part, name: str, unit: str, values: dict[int, list[float]], *, best: Any) -> None:
    medians = {size: median(times) for size, times in values.items()}
    for size, value in medians.items():
        part.figures[f"tune_{name}_{size}"] = Figure(value, unit)
    if medians:
        part.figures[f"tune_best_{name}"] = Figure(best(medians, key=medians.get), "tokens")
    part.samples[name] = values


def _decode_ms(model_dir: str, device: str, block_size: int, *, quick: bool) -> float:
    """Return the median of a decode step, ms: contexts of about 1,000 tokens, 32 rows."""
    num_rows, num_tokens = (2, 64) if quick else (32, 1000)
    engine = _load(model_dir, device, block_size=block_size)
    run = Driver(engine).run(_jobs(num_rows, num_tokens, 24))
    engine.close()
    return median_step_s(run.decode_steps(num_rows)) * 1000


def _prefill_rate(model_dir: str, device: str, step_tokens: int, *, quick: bool) -> float:
    """Return prompt tokens/s with steps of so many tokens; the first prompts warm up."""
    engine = _load(model_dir, device, max_num_batched_tokens=step_tokens)
    num_tokens = 64 if quick else 1024
    Driver(engine).run(_jobs(1, num_tokens, 1))
    run = Driver(engine).run(_jobs(2 if device == "cpu" else 16, num_tokens, 1))
    engine.close()
    return run.num_prompt_tokens / run.wall_s


def _load(model_dir: str, device: str, **sizes: int) -> Engine:
    return load_engine(
        EngineConfig(
            model_dir=Path(model_dir),
            load_format="dummy",
            device=device,
            kv_cache_bytes=(2 if device == "cpu" else 20) << 30,
            **sizes,  # type: ignore[arg-type]
        )
    )


def _jobs(count: int, num_tokens: int, num_output_tokens: int) -> list[Job]:
    draw = random.Random(count)
    return [
        Job(
            prompt=[draw.randrange(32_000) for _ in range(num_tokens)],
            num_output_tokens=num_output_tokens,
        )
        for _ in range(count)
    ]
