"""`python -m gateway.services.what_if.child`: replay requests where that may be killed.

A question comes in on stdin, and for each of its policies a line of JSON goes out on stdout, as
soon as it is known. The process gives way to everybody else's, and dies of more memory or time of
a processor than it was given, which are its two arguments.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any, Final

import msgspec
import numpy as np

from engine.step_cost import LinearCost, StepCost
from gateway.services.admin.scheduler_config import changed
from gateway.services.what_if.question import Came, Engine, Question
from scheduler.config import PRESETS
from scheduler.request import BANDS, Slo
from scheduler.simulator.metrics import measure
from scheduler.simulator.records import Run
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine
from scheduler.simulator.workload import Arrival, Workload

_US: Final = 1e-6
_NICE: Final = 19


def main() -> None:
    memory_bytes, cpu_s = (int(text) for text in sys.argv[1:3])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    os.nice(_NICE)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    for policy in question.policies:
        found = {"policy": policy} | replay(question, policy)
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


def replay(question: Question, policy: str) -> dict[str, Any]:
    """Run a question's requests under a policy; returns its figures."""
    config = changed(PRESETS["mixed"], question.config | {"policy": policy})
    arrivals = [_arrival(one) for one in question.came]
    duration_s = max(1e-9, arrivals[-1].at_s)
    workload = Workload(name="past", arrivals=arrivals, duration_s=duration_s)
    run = simulate(_machine(question.engine), config, workload)
    figures = measure(run)
    return {
        "ttft_p95_s": _ttft_p95_s(run),
        "completed": figures["completed"],
        "refused": figures["rejected"],
        "goodput_rps": figures["goodput_rps"],
        "attained": figures["slo_attainment"],
        "jain": figures["jain"],
        "tokens_per_s": figures["tokens_per_s"],
    }


def _ttft_p95_s(run: Run) -> dict[str, float]:
    of_band: dict[str, list[float]] = {}
    for record in run.online:
        if record.has_begun:
            of_band.setdefault(record.arrival.band.name.lower(), []).append(record.ttft_s)
    return {band: float(np.percentile(times, 95)) for band, times in of_band.items()}


def _arrival(one: Came) -> Arrival:
    return Arrival(
        at_s=one.at_s,
        tenant_id=one.tenant,
        organisation_id=one.org,
        weight=one.weight,
        band=BANDS[one.band],
        num_prompt_tokens=one.num_prompt_tokens,
        num_output_tokens=one.num_output_tokens,
        slo=Slo(one.ttft_s, one.tpot_s, None),
    )


def _machine(engine: Engine) -> Machine:
    line = LinearCost(
        intercept_s=engine.step_us * _US,
        per_token_s=0.0,
        per_prefill_token_s=engine.prompt_token_us * _US,
        per_decode_token_s=engine.row_us * _US,
        per_decode_context_token_s=engine.context_token_us * _US,
    )
    return Machine(
        cost=StepCost("learned", line, line),
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        num_blocks=engine.num_blocks,
        block_size=engine.block_size,
        depth=engine.depth,
    )


if __name__ == "__main__":
    main()
