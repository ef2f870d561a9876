"""The engines that can be simulated, and the one place that makes a scheduler for a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.contract import EngineInfo, StepPlan, StepResult
from engine.simulated import SimulatedEngine
from engine.step_cost import StepCost, load_profile
from scheduler.config import SchedulerConfig
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.request import Admit, Reject, Request, RequestOutput
from scheduler.simulator.errors import SimulationError

_END_TOKEN = 2
_TEXT_TOKEN = 1


class Serving(Protocol):
    """Be driven step by step: `scheduler.core.Scheduler`, or what it is compared with."""

    @property
    def info(self) -> EngineInfo: ...

    def offer(self, request: Request, now: float) -> Admit | Reject: ...

    def plan(self, now: float) -> StepPlan | None: ...

    def take_expired(self) -> list[RequestOutput]: ...

    def report(self, result: StepResult, now: float) -> Iterable[RequestOutput]: ...

    def cancel(self, request_id: str, now: float) -> RequestOutput | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Size a simulated engine; `cost` prices its steps and has its name."""

    cost: StepCost
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    depth: int = 1


def _machines() -> Mapping[str, Machine]:
    return {
        # 80 GB at 0.9, less 16 GB of weights, at 128 KiB a token of KV.
        "a100-llama-3-8b": Machine(
            cost=load_profile("a100-llama-3-8b"),
            max_model_len=131_072,
            max_num_seqs=256,
            max_num_batched_tokens=2_560,
            num_blocks=25_600,
            block_size=16,
            depth=2,
        ),
        # 140 GiB at 0.9, less 16 GB of weights, at 144 KiB a token of KV.
        "nvidia-h200-qwen3-8b": Machine(
            cost=load_profile("nvidia-h200-qwen3-8b"),
            max_model_len=40_960,
            max_num_seqs=256,
            max_num_batched_tokens=2_048,
            num_blocks=12_500,
            block_size=64,
            depth=2,
        ),
        "cpu-demo": Machine(
            cost=load_profile("cpu-demo"),
            max_model_len=4_096,
            max_num_seqs=64,
            max_num_batched_tokens=1_024,
            num_blocks=1_024,
            block_size=64,
        ),
    }


def load_machine(name: str) -> Machine:
    """Size the engine of a shipped machine. Raises: `SimulationError`: there is none."""
    machines = _machines()
    machine = machines.get(name)
    if machine is None:
        raise SimulationError(
            f"no machine {name!r}: choose one of {', '.join(machines)}, or a file"
        )
    return machine


def open_engine(
    machine: Machine, *, output_lengths: Mapping[str, int] | None = None, checks: bool = False
) -> SimulatedEngine:
    """Make the engine, in virtual time; each request ends at its length in `output_lengths`."""
    return SimulatedEngine(
        machine.cost,
        vocab_size=1 << 30,
        max_model_len=machine.max_model_len,
        max_num_seqs=machine.max_num_seqs,
        max_num_batched_tokens=machine.max_num_batched_tokens,
        num_blocks=machine.num_blocks,
        block_size=machine.block_size,
        eos_token_ids=frozenset([_END_TOKEN]),
        alphabet=[_TEXT_TOKEN],
        output_lengths=output_lengths,
        depth=machine.depth,
        checks=checks,
    )


def open_scheduler(info: EngineInfo, config: SchedulerConfig, prior: StepCost) -> Scheduler:
    """Make the scheduler that production runs; it takes `prior` for the engine's prices."""
    return Scheduler(info, config, step_model=StepModel(prior))
