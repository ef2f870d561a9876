"""What a workload measures with, without a model: shared by the tests of the benches."""

from __future__ import annotations

import random
from functools import partial

from engine.contract import EngineInfo, StepPlan, StepResult
from engine.demo import MODEL_DIR
from engine.models.hf_config import load_model_config
from fakes import make_engine
from scheduler.bench.roofline import Ceilings, ModelWork
from scheduler.bench.setup import Bench, Options

H200 = Ceilings(4.3e12, 790e12)


class RenewedEngine:
    """Simulate an engine, a small one by itself, a new one after each reset: rounds begin anew."""

    def __init__(
        self,
        *,
        depth: int = 1,
        max_model_len: int = 256,
        max_num_batched_tokens: int = 64,
        num_blocks: int = 512,
    ) -> None:
        self._make = partial(
            make_engine,
            depth=depth,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            num_blocks=num_blocks,
        )
        self.reset()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def launch(self, plan: StepPlan) -> object:
        return self._engine.launch(plan)

    def collect(self, handle: object) -> StepResult:
        return self._engine.collect(handle)

    def reset(self) -> None:
        self._engine = self._make()

    def close(self) -> None:
        self._engine.close()


def make_bench(
    device: str = "cpu",
    *,
    engine: RenewedEngine | None = None,
    work: ModelWork | None = None,
    eight_bits: bool = False,
    batches: tuple[int, ...] | None = None,
) -> Bench:
    fp8 = "fp8" if eight_bits else None
    return Bench(
        options=Options(
            device=device, rounds=1, scale=0.01, batches=batches, weight_dtype=fp8, kv_dtype=fp8
        ),
        slug="tiny",
        uses_native=False,
        own_dtype="float32",
        engine=engine or RenewedEngine(),
        peer=None,
        work=work or ModelWork(load_model_config(MODEL_DIR), 4),
        ceilings=H200,
        draw=random.Random(1),
    )
