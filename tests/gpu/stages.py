"""What the parts are made of: stages, each of which runs in a process of its own.

A stage is called by its part, and after a colon by what it does of it. Listing them loads no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping

from engine.models.registry import known_architectures
from scheduler.bench.engine_bench import WORKLOADS
from scheduler.bench.part import Part
from tests.gpu import bench
from tests.gpu.asked import Asked
from tests.gpu.shapes import MODELS

# The family that is used most comes first.
_FIRST_FAMILY = "Qwen3ForCausalLM"
# Where a part, or a stage, is not the work of the module of its name.
_MODULES = {"profile": "step_profiles", "correctness:kernels": "kernel_tests"}
# With a cache in 16 bits, then in 8; what combines pieces reads no cache. What runs at once depends
# on how decode attention is launched.
TUNED_KERNELS = (
    *("decode_attention", "decode_pieces", "combine_attention", "prefill_attention"),
    *("decode_attention:fp8", "decode_pieces:fp8", "prefill_attention:fp8"),
)


def list_stages(part: str, asked: Asked) -> list[str]:
    """List the stages of a part, in the order in which they run."""
    return [f"{part}:{name}" if name else part for name in PARTS[part](asked)]


def is_known(stage: str) -> bool:
    """Tell whether all that a stage is called by exists."""
    part, _, name = stage.partition(":")
    return part != "bench" or set(bench.Stage.of(name).workloads) <= set(WORKLOADS)


def run_stage(stage: str, asked: Asked) -> Iterator[tuple[str, Part]]:
    """Run a stage in this process; a part of its report comes whenever there is more in it."""
    part, _, name = stage.partition(":")
    # Imported late: most of them load torch, and some transformers.
    module = importlib.import_module(f"tests.gpu.{_MODULES.get(stage) or _MODULES.get(part, part)}")
    return module.run(asked, name)  # type: ignore[no-any-return]


def _correctness(asked: Asked) -> list[str]:
    if asked.quick:
        return ["kernels", "all"]
    families = sorted(known_architectures(), key=lambda family: family != _FIRST_FAMILY)
    # Kernels' own tests are for where they are compiled: elsewhere they run by themselves.
    return ["kernels", *families] if asked.on_gpu else families


def _tune(asked: Asked) -> list[str]:
    kernels = TUNED_KERNELS if asked.on_gpu and not asked.quick else ()
    return [*kernels, "sizes"]


def _quality(asked: Asked) -> list[str]:
    models = () if asked.quick else asked.models or (("qwen3-0.6b",) if asked.on_gpu else ())
    return ["demo", *models]


def _profile(asked: Asked) -> list[str]:
    return ["demo"] if asked.quick else [model for model in MODELS if asked.wants(model)]


PARTS: Mapping[str, Callable[[Asked], list[str]]] = {
    "correctness": _correctness,
    "tune": _tune,
    "quality": _quality,
    "bench": lambda asked: [stage.name for stage in bench.choose(asked)],
    "profile": _profile,
    "soak": lambda asked: [""],
}
