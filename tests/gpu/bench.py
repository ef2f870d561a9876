"""The engine bench on a device, with random weights in the shapes of real models.

The figures that the documents quote come first, so that a run that is cut short has them. A model
is loaded anew for each stage: that takes seconds, for random weights are made where they are used.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduler.bench.drive import BenchError
from scheduler.bench.engine_bench import measure
from scheduler.bench.part import Part
from scheduler.bench.setup import DEMO, Options
from tests.gpu.asked import Asked
from tests.gpu.shapes import model_directory


@dataclass(frozen=True, slots=True)
class Stage:
    """Name workloads that share an engine; `fp8` is "weights", "kv", "both" or nothing."""

    model: str
    workloads: tuple[str, ...]
    rounds: int = 2
    fp8: str = ""


STAGES = (
    Stage("qwen3-0.6b", ("nano",)),
    Stage("qwen3-8b", ("1k1k", "prefill"), rounds=1),
    Stage("qwen3-0.6b", ("decode-sweep",)),
    Stage("qwen3-0.6b", ("peer",)),
    Stage("qwen3-0.6b", ("host-share", "loop-lag")),
    Stage("llama-3.2-1b", ("decode-sweep", "nano", "prefill", "64k", "uneven")),
    Stage("qwen3-8b", ("decode-sweep", "64k", "uneven", "nano")),
    Stage("qwen3-4b", ("decode-sweep", "nano", "prefill")),
    Stage("llama-3.1-8b", ("decode-sweep", "prefill", "64k")),
    Stage("qwen3-0.6b", ("shared-prefix", "mixed", "prefill", "1k1k")),
    Stage("llama-3.1-8b", ("1k1k",), rounds=1),
    Stage("qwen3-8b", ("1k1k",), rounds=1, fp8="both"),
    Stage("qwen3-8b", ("decode-sweep", "prefill"), fp8="weights"),
    Stage("llama-3.1-8b", ("64k",), fp8="kv"),
)
_QUICK_WORKLOADS = ("decode-sweep", "nano", "1k1k", "loop-lag")


def run(asked: Asked) -> Iterator[tuple[str, Part]]:
    """Measure stage after stage until the deadline; what it did not suffice for is named."""
    if asked.quick:
        yield from measure(_quick_options(asked), _QUICK_WORKLOADS)
        return
    num_broken = 0
    for stage in choose(asked):
        if asked.deadline.passed:
            sys.stderr.write(f"no time for {stage.model}: {', '.join(stage.workloads)}\n")
            continue
        try:
            yield from _run_stage(stage, asked)
        except Exception:
            # Printed, not kept: what it holds is memory that the next stage needs.
            traceback.print_exc()
            num_broken += 1
    if num_broken:
        raise BenchError(f"{num_broken} stages of the bench broke")


def _run_stage(stage: Stage, asked: Asked) -> Iterator[tuple[str, Part]]:
    """Measure one stage, as far as the time suffices."""
    with model_directory(stage.model) as directory:
        options = Options(
            model_dir=directory,
            device=asked.device,
            rounds=stage.rounds,
            scale=1.0,
            # The peer needs weights that are saved.
            dummy="peer" not in stage.workloads,
            weight_dtype="fp8" if stage.fp8 in ("weights", "both") else None,
            kv_dtype="fp8" if stage.fp8 in ("kv", "both") else None,
        )
        for title, part in measure(options, stage.workloads):
            yield title, part
            if asked.deadline.passed:
                sys.stderr.write(f"the time was up after {title}\n")
                break


def choose(asked: Asked) -> list[Stage]:
    """Pick the stages of the models and workloads that are asked for, in their order.

    A model and a workload that no stage has together are measured all the same. Where fp8 is asked
    for, it is what all of them have.
    """
    chosen = []
    for stage in STAGES:
        if asked.fp8 and stage.fp8:
            continue
        workloads = tuple(w for w in stage.workloads if w in (asked.workloads or stage.workloads))
        if asked.wants(stage.model) and workloads:
            fp8 = asked.fp8 or stage.fp8
            chosen.append(replace(stage, workloads=workloads, fp8=fp8))
    found = {(stage.model, workload) for stage in chosen for workload in stage.workloads}
    for model in asked.models:
        missing = [w for w in asked.workloads if (model, w) not in found]
        chosen += [Stage(model, (workload,), fp8=asked.fp8) for workload in missing]
    return chosen


def _quick_options(asked: Asked) -> Options:
    return Options(
        shape=DEMO,
        device=asked.device,
        num_threads=1,
        batches=(1, 2),
        rounds=1,
        scale=0.01,
        peers=False,
    )
