"""Every number that decides what an engine runs next, and the presets of them.

A configuration is data: it may be replaced while the scheduler runs, at a step boundary
(`Scheduler.configure`). Times are in seconds, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from scheduler.request import Band

FairnessUnit = Literal["time", "tokens"]
KvReserve = Literal["prompt", "predicted", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Say what a token costs a tenant where fairness counts tokens; money is another matter.

    `cached_input` is for prompt tokens that the prefix cache held.
    """

    input: float = 1.0
    output: float = 2.0
    cached_input: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessConfig:
    """Say who is next; see `scheduler.policies` and `scheduler.order.fair_tree`.

    Tenants are charged in `unit`: for the time that their requests take on the machine and the
    memory they hold (`scheduler.learn.MachineTime`), or for tokens at `prices`.
    `policy` is a name of `policies.registry`, or three of them, for the levels of tenants, keys
    and requests, as in `vtc/vtc/edf`. `params` are keyword arguments by policy name. A tenant may
    go ahead of its counter by `borrow_tokens` to save a deadline. With `precharge_output` the
    expected output is charged with the prompt. `band_shares` is what each band is guaranteed of
    the service while it has work, however much the bands above it have; that of `due` is for work
    of the batch band whose window nears its end (0: none is forced up; see
    `scheduler.order.windows`). A request without a promise counts as promised within
    `best_effort_ttft_s`. So that tenants have their shares of the
    rows that decode, and promises are kept, rows sit out steps; that costs at most
    `max_throughput_loss` of what the machine does (0: all rows decode in every step; see
    `scheduler.step.decode_shares`), and bounds as well what batch work does to their steps. With
    `levels_prompts` prompts without a promise are cut for others' rows within the same bound
    (`scheduler.step.prompt_shares`).
    """

    policy: str = "vtc"
    params: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    unit: FairnessUnit = "time"
    prices: Prices = Prices()
    borrow_tokens: float = 16_384.0
    precharge_output: bool = False
    best_effort_ttft_s: float = 60.0
    max_throughput_loss: float = 0.2
    levels_prompts: bool = True
    band_shares: Mapping[Band, float] = field(
        default_factory=lambda: MappingProxyType(
            {
                Band.PRIORITY: 0.0,
                Band.DEFAULT: 0.1,
                Band.FLEX: 0.05,
                Band.DUE: 0.05,
                Band.BATCH: 0.0,
            }
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposerConfig:
    """Say how a step is filled; see `scheduler.step.composer`.

    A step computes at most `max_num_batched_tokens` (None: what the engine takes). With
    `dynamic_chunk`, prefill is cut so that the step ends before the tightest deadline and takes at
    most `pace_fraction` of the tightest pace, but never below `min_chunk_tokens`. Nor does prefill
    make a step longer than what it costs by itself and for its decodes over `max_overhead_share`
    (None: however long): more would save next to nothing, and whoever comes waits for its end.
    `max_step_s` bounds the predicted time of every step. `prefill_first` runs prefills in steps of
    their own, and `admission_interval_steps` looks at the queue only every so many decoding steps:
    both as the engines of the VTC paper did. A request that does not fit may be passed by
    `max_bypasses` others. `kv_reserve` says what must be free before a request is admitted: its
    prompt, its predicted length (at `kv_quantile`, by the peak that all running requests will reach
    together), or all it may draw. Work of the batch band leaves `batch_kv_headroom` of the blocks
    and slots free, and a step that carries it beside other work takes `harvest_step_s` at most, and
    no longer than the other work's own time over `max_throughput_loss`.
    Once online prompts wait, that work is left out of steps for `harvest_pause_s` (0: it never is;
    see `scheduler.step.giving_way`).
    """

    max_num_batched_tokens: int | None = None
    dynamic_chunk: bool = True
    pace_fraction: float = 0.8
    min_chunk_tokens: int = 128
    max_overhead_share: float | None = 0.05
    max_step_s: float | None = None
    prefill_first: bool = False
    admission_interval_steps: int = 1
    max_bypasses: int = 0
    kv_reserve: KvReserve = "predicted"
    kv_quantile: float = 0.9
    batch_kv_headroom: float = 0.1
    harvest_step_s: float = 0.06
    harvest_pause_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Say when a request is refused at once; see `scheduler.admission`.

    With `predict_ttft`, one whose first token would come later than `ttft_fraction` of its
    promise is refused. A tenant's queue is bounded by `tenant_queue_alpha` times what is left of
    `max_queued_tokens` (None: no bound), in proportion to its weight. With `drop_expired`, work
    whose deadline has passed while it waited is ended instead of run.
    """

    predict_ttft: bool = True
    ttft_fraction: float = 0.9
    max_num_queued: int = 10_000
    max_queued_tokens: int | None = None
    tenant_queue_alpha: float = 1.0
    drop_expired: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionConfig:
    """Say who may be sent back; see `scheduler.step.preemption`.

    A request is preempted `max_preemptions` times at most, and not in its first
    `min_run_steps` steps.
    """

    max_preemptions: int = 2
    min_run_steps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Gather the numbers of all parts."""

    fairness: FairnessConfig = FairnessConfig()
    composer: ComposerConfig = ComposerConfig()
    admission: AdmissionConfig = AdmissionConfig()
    preemption: PreemptionConfig = PreemptionConfig()
    prefix_caching: bool = True


_MIXED = SchedulerConfig()
PRESETS: Mapping[str, SchedulerConfig] = MappingProxyType(
    {
        "mixed": _MIXED,
        "low-latency": replace(
            _MIXED,
            composer=ComposerConfig(max_num_batched_tokens=512, min_chunk_tokens=64),
        ),
        "high-throughput": replace(
            _MIXED,
            composer=ComposerConfig(dynamic_chunk=False),
            admission=AdmissionConfig(predict_ttft=False),
        ),
    }
)


def first_come(*, prefix_caching: bool = True, max_num_queued: int = 10_000) -> SchedulerConfig:
    """Configure what one user alone needs: the order of arrival, full steps, no predictions."""
    return SchedulerConfig(
        fairness=FairnessConfig(policy="fcfs", unit="tokens"),
        composer=ComposerConfig(dynamic_chunk=False, kv_reserve="prompt"),
        admission=AdmissionConfig(
            predict_ttft=False, max_num_queued=max_num_queued, drop_expired=False
        ),
        prefix_caching=prefix_caching,
    )
