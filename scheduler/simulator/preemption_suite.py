"""Who is sent back when slots or memory run short, and what that costs.

An A100 with room for 64 rows and 65,536 tokens of KV is offered 1.3 times what it sustains, as
Azure's conversations; every twentieth request is short and urgent. With bands the urgent ones are
of the band `priority`; without, they wait with the others. Then the same load in one band with
lengths that have to be predicted, where memory is reserved for the prompt alone, for what is
predicted, or for all that may be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scheduler.config import (
    AdmissionConfig,
    ComposerConfig,
    FairnessConfig,
    KvReserve,
    PreemptionConfig,
    SchedulerConfig,
)
from scheduler.figure import Figure, at_least, at_most
from scheduler.request import Band
from scheduler.simulator.capacity import measure_capacity
from scheduler.simulator.metrics import measure, quantiles
from scheduler.simulator.records import Run
from scheduler.simulator.report import number, percent, seconds
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import Machine, load_machine
from scheduler.simulator.suite import OnRun, SuiteResult
from scheduler.simulator.synthetic import azure_lengths, poisson
from scheduler.simulator.workload import Arrival, Workload

_LOAD = 1.3
_URGENT_EVERY = 20
_URGENT_TOKENS = (128, 64)
_MAX_TOKENS = 2_048
_URGENT_SPEEDUP = 10.0
_THROUGHPUT_SHARE = 0.9
_RESERVES: tuple[KvReserve, ...] = ("prompt", "predicted", "max")
NUM_RUNS = 2 + len(_RESERVES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionSuiteOptions:
    """Size the suite."""

    duration_s: float = 300.0
    seed: int = 42


_DEFAULTS = PreemptionSuiteOptions()


def run(on_run: OnRun, options: PreemptionSuiteOptions = _DEFAULTS) -> SuiteResult:
    """Run with and without bands, then with each way to reserve memory."""
    result = SuiteResult(
        header=(
            "",
            "urgent TTFT p99",
            "others' p99",
            "tokens/s",
            "preemptions",
            "at most",
            "recomputed",
        )
    )
    machine = replace(load_machine("a100-llama-3-8b"), depth=1, max_num_seqs=64, num_blocks=4_096)
    rate = _rate(machine, options)
    banded = simulate(machine, _config(), _workload(rate, options, urgent=Band.PRIORITY))
    urgent_s = _show("bands", banded, result)
    on_run("bands")
    level = simulate(machine, _config(), _workload(rate, options, urgent=Band.DEFAULT))
    level_s = _show("one band", level, result)
    on_run("one band")
    bound = PreemptionConfig().max_preemptions
    result.figures |= {
        "urgent_ttft_p99_s": Figure(urgent_s, "s"),
        "urgent_ttft_p99_speedup": at_least(level_s / urgent_s, _URGENT_SPEEDUP, "ratio"),
        "bands_throughput_share": at_least(
            _tokens_per_s(banded) / _tokens_per_s(level), _THROUGHPUT_SHARE, "share"
        ),
        "bands_preemptions_of_one_request_max": at_most(_most(banded), bound, "preemptions"),
        "bands_unfinished": at_most(_unfinished(banded), 0, "requests"),
    }
    for reserve in _RESERVES:
        workload = _workload(rate, options, urgent=Band.DEFAULT, max_tokens=_MAX_TOKENS)
        done = simulate(machine, _config(reserve), workload)
        _show(f"reserve {reserve}", done, result)
        on_run(f"reserve {reserve}")
        result.figures |= {
            f"reserve_{reserve}_tokens_per_s": Figure(_tokens_per_s(done), "tokens/s"),
            f"reserve_{reserve}_recomputed_share": Figure(_recomputed(done), "share"),
            f"reserve_{reserve}_unfinished": at_most(_unfinished(done), 0, "requests"),
        }
    return result


def _config(reserve: KvReserve = "predicted") -> SchedulerConfig:
    return SchedulerConfig(
        fairness=FairnessConfig(policy="fcfs"),
        composer=ComposerConfig(kv_reserve=reserve),
        admission=AdmissionConfig(predict_ttft=False, max_num_queued=1_000_000, drop_expired=False),
        prefix_caching=True,
    )


def _rate(machine: Machine, options: PreemptionSuiteOptions) -> float:
    sample = _workload(5.0, options, urgent=Band.DEFAULT)
    tokens_per_s = measure_capacity(machine, _config(), sample)
    return _LOAD * tokens_per_s * len(sample.arrivals) / sample.num_tokens


def _workload(
    rate: float,
    options: PreemptionSuiteOptions,
    *,
    urgent: Band,
    max_tokens: int | None = None,
) -> Workload:
    def make(index: int, at_s: float, prompt: int, output: int) -> Arrival:
        is_urgent = index % _URGENT_EVERY == 0
        lengths = _URGENT_TOKENS if is_urgent else (prompt, output)
        return Arrival(
            at_s=at_s,
            tenant_id="urgent" if is_urgent else "others",
            num_prompt_tokens=lengths[0],
            num_output_tokens=lengths[1],
            band=urgent if is_urgent else Band.DEFAULT,
            max_tokens=max_tokens,
        )

    return poisson(
        "preemption",
        rate=rate,
        duration_s=options.duration_s,
        lengths=azure_lengths(),
        seed=options.seed,
        make=make,
    )


def _tokens_per_s(done: Run) -> float:
    return sum(r.arrival.num_tokens for r in done.records if r.is_complete) / done.end_s


def _most(done: Run) -> int:
    return max(record.num_preemptions for record in done.records)


def _unfinished(done: Run) -> int:
    return sum(not record.is_complete for record in done.records)


def _recomputed(done: Run) -> float:
    return done.num_recomputed_tokens / max(1, done.num_prefill_tokens)


def _show(name: str, done: Run, result: SuiteResult) -> float:
    """Add a row and a sample; returns the 99th percentile of the urgent ones' TTFT."""
    figures: dict[str, Any] = measure(done)
    p99 = {
        tenant: quantiles(
            r.ttft_s for r in done.records if r.has_begun and r.arrival.tenant_id == tenant
        )["p99"]
        for tenant in ("urgent", "others")
    }
    result.samples[name] = {
        "ttft_p99_s": p99,
        "tokens_per_s": figures["tokens_per_s"],
        "preemptions": figures["preemptions"],
        "recomputed_tokens": figures["recomputed_tokens"],
        "rows_per_step": figures["rows_per_step"],
        "requests": figures["requests"],
    }
    result.rows.append(
        (
            name,
            seconds(p99["urgent"]),
            seconds(p99["others"]),
            number(figures["tokens_per_s"]),
            number(figures["preemptions"]),
            number(_most(done)),
            percent(_recomputed(done)),
        )
    )
    assert p99["urgent"] is not None, "some urgent request is served in every run"
    return p99["urgent"]
