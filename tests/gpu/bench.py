"""The engine bench on a device, with random weights in the shapes of real models.

The figures that the documents quote come first, so that a run that is cut short has them, and the
peer last: it takes the longest, and most of the memory. A model is loaded anew for each stage: that
takes seconds, for random weights are made where they are used. Loads no torch by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduler.bench.engine_bench import WORKLOADS, measure
from scheduler.bench.part import Part
from scheduler.bench.setup import DEMO, Options
from tests.gpu.asked import Asked
from tests.gpu.shapes import model_directory


@dataclass(frozen=True, slots=True)
class Stage:
    """Name workloads that share an engine; `fp8` is "weights", "kv", "both" or nothing."""

    model: str
    workloads: tuple[str, ...]
    fp8: str = ""

    @classmethod
    def of(cls, name: str) -> Stage:
        """Read what `name` says: `model:workload+workload`, and `:fp8` where there is one."""
        model, workloads, *fp8 = name.split(":")
        return cls(model, tuple(workloads.split("+")), *fp8)

    @property
    def name(self) -> str:
        name = f"{self.model}:{'+'.join(self.workloads)}"
        return f"{name}:{self.fp8}" if self.fp8 else name

    @property
    def rounds(self) -> int:
        # One of 256 × 1,024 takes half a minute on a large model, and the peer's as long.
        is_long = "peer" in self.workloads or (
            "1k1k" in self.workloads and self.model.endswith("-8b")
        )
        return 1 if is_long else 2


STAGES = (
    Stage("qwen3-0.6b", ("nano",)),
    Stage("qwen3-8b", ("1k1k", "prefill")),
    Stage("qwen3-0.6b", ("decode-sweep",)),
    Stage("qwen3-0.6b", ("host-share", "loop-lag", "sampling")),
    # What is profiled may be slower afterwards, and a second profile lose kernels: a process alone.
    Stage("qwen3-8b", ("trace",)),
    Stage("llama-3.2-1b", ("decode-sweep", "nano", "prefill", "64k", "uneven")),
    Stage("qwen3-8b", ("decode-sweep", "64k", "uneven", "nano")),
    Stage("qwen3-4b", ("decode-sweep", "nano", "prefill")),
    Stage("llama-3.1-8b", ("decode-sweep", "prefill", "64k")),
    Stage("qwen3-0.6b", ("shared-prefix", "mixed", "prefill", "1k1k")),
    Stage("llama-3.1-8b", ("1k1k",)),
    Stage("qwen3-8b", ("1k1k",), fp8="both"),
    Stage("qwen3-8b", ("decode-sweep", "prefill"), fp8="weights"),
    Stage("llama-3.1-8b", ("64k",), fp8="kv"),
    Stage("qwen3-0.6b", ("peer",)),
)
_QUICK_STAGE = Stage(DEMO, ("decode-sweep", "nano", "1k1k", "loop-lag", "sampling", "trace"))


def run(asked: Asked, name: str) -> Iterator[tuple[str, Part]]:
    """Measure a stage, as far as the time suffices."""
    stage = Stage.of(name)
    if asked.quick:
        yield from measure(_quick_options(asked, stage), stage.workloads)
        return
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
            graphs=not asked.eager,
        )
        for title, part in measure(options, stage.workloads):
            yield title, part
            if part.complete and asked.deadline.passed:
                sys.stderr.write(f"the time was up after {title}\n")
                break


def choose(asked: Asked) -> list[Stage]:
    """Pick the stages of the models and workloads that are asked for, in their order.

    A model and a workload that no stage has together are measured all the same. Where fp8 is asked
    for, it is what all of them have. A workload that does not exist is left out.
    """
    if asked.quick:
        return [_QUICK_STAGE]
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
        missing = [w for w in asked.workloads if (model, w) not in found and w in WORKLOADS]
        chosen += [Stage(model, (workload,), fp8=asked.fp8) for workload in missing]
    return chosen


def _quick_options(asked: Asked, stage: Stage) -> Options:
    return Options(
        shape=DEMO,
        device=asked.device,
        num_threads=1,
        batches=(1, 2),
        rounds=1,
        scale=0.01,
        peers="peer" in stage.workloads,
        graphs=not asked.eager,
        kv_cache_bytes=1 << 26,
        ceiling_rounds=1,
    )
