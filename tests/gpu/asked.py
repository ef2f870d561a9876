"""What a run of `python -m tests.gpu` was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import EngineConfig
from engine.contract import Engine
from scheduler.bench.setup import opened_engine
from tests.gpu.deadline import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Say where a part runs, for how long, and what of it.

    `models` and `workloads` narrow a part that has several down; empty is all. `fp8` is "weights",
    "kv", "both" or nothing. `eager` opens engines without graphs. `out` is where files go beside
    the report, where that is not their own place.
    """

    device: str
    deadline: Deadline
    quick: bool = False
    models: tuple[str, ...] = ()
    fp8: str = ""
    workloads: tuple[str, ...] = ()
    eager: bool = False
    out: Path | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def wants(self, model: str) -> bool:
        return not self.models or model in self.models

    @property
    def tuned_settings(self) -> Path | None:
        """Say where settings of kernels are kept, where that is not their own place."""
        return None if self.out is None else self.out / "tuned_settings"

    @contextmanager
    def engine(self, config: EngineConfig) -> Iterator[Engine]:
        """Open an engine, and give its memory back; parts get theirs here."""
        with opened_engine(replace(config, graphs=config.graphs and not self.eager)) as engine:
            yield engine

    @property
    def options(self) -> list[str]:
        """Spell out what the stages of this run are to be given, but for their time."""
        options = [f"--device={self.device}"]
        options += [f"--model={model}" for model in self.models]
        options += [f"--workload={workload}" for workload in self.workloads]
        options += [f"--fp8={self.fp8}"] if self.fp8 else []
        options += [f"--out={self.out}"] if self.out is not None else []
        options += ["--quick"] if self.quick else []
        options += ["--eager"] if self.eager else []
        return options
