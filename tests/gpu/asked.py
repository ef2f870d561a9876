"""What a run of `python -m tests.gpu` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.gpu.deadline import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Say where a part runs, for how long, and what of it.

    `models` and `workloads` narrow a part that has several down; empty is all. `fp8` is "weights",
    "kv", "both" or nothing. `out` is where files go beside the report, where that is not their own
    place.
    """

    device: str
    deadline: Deadline
    quick: bool = False
    models: tuple[str, ...] = ()
    fp8: str = ""
    workloads: tuple[str, ...] = ()
    out: Path | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def wants(self, model: str) -> bool:
        return not self.models or model in self.models
