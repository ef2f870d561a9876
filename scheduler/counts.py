"""What a scheduler has done and holds, as numbers to be read every few seconds: for metrics.

Counts only rise as long as the scheduler lives; reading them takes some tens of microseconds,
however many tenants and requests there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.kv.block_pool import BlockPool
from scheduler.admission import Admission
from scheduler.facts import PreemptionCause
from scheduler.learn import StepModel
from scheduler.lifecycle import Lifecycle
from scheduler.request import Band
from scheduler.watch.step_counts import Histogram, StepCounts


@dataclass(frozen=True, slots=True)
class BandCount:
    """Say how many requests of a band have no slot now, and how many have one."""

    band: Band
    queued: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Count what was done since the start, and what is held now.

    Done: steps, by their rows, tokens and seconds; tokens that rows which decode drew in them, and
    tokens of prompts (`num_wasted_tokens` of these again, after a preemption). `refusals`, by what
    they were for; `preemptions`; requests that ended, and those of them that `num_expired` as they
    waited. `num_prompt_tokens` are those of requests that were given a slot, as they were, of which
    `num_cached_tokens` were found in the prefix cache; `num_evicted_blocks` were reused while they
    could still have been found.

    Held: requests by band, `num_prefilling` and `num_decoding` of them with slots; blocks, of which
    `used_blocks` are in tables, `shared_blocks` of these in more than one, and `cached_blocks`, in
    tables or not, can be found.

    `step_error` is the mean of |predicted - took| / took over the last few hundred steps,
    `step_bias` the same with its sign, above 0 where steps take less than predicted.
    """

    num_steps: int
    rows: Histogram
    tokens: Histogram
    seconds: Histogram
    num_prefill_tokens: int
    num_decode_tokens: int
    num_output_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_wasted_tokens: int
    num_finished: int
    num_expired: int
    refusals: Mapping[str, int]
    preemptions: Mapping[PreemptionCause, int]
    bands: tuple[BandCount, ...]
    num_prefilling: int
    num_decoding: int
    max_rows: int
    total_blocks: int
    used_blocks: int
    shared_blocks: int
    cached_blocks: int
    num_evicted_blocks: int
    step_error: float
    step_bias: float


def count(
    steps: StepCounts,
    lifecycle: Lifecycle,
    pool: BlockPool,
    admission: Admission,
    step_model: StepModel,
    *,
    num_output_tokens: int,
    max_rows: int,
) -> Counts:
    """Read the counts of a scheduler."""
    running, ended = lifecycle.running, lifecycle.ended
    figures = steps.read()
    return Counts(
        num_steps=figures.seconds.counts[-1],
        rows=figures.rows,
        tokens=figures.tokens,
        seconds=figures.seconds,
        num_prefill_tokens=figures.num_prefill_tokens,
        num_decode_tokens=figures.num_decode_tokens,
        num_output_tokens=num_output_tokens,
        num_prompt_tokens=lifecycle.begun.num_prompt_tokens,
        num_cached_tokens=lifecycle.begun.num_cached_tokens,
        num_wasted_tokens=lifecycle.charges.num_wasted_tokens,
        num_finished=ended.num_finished,
        num_expired=ended.num_expired,
        refusals=dict(admission.rejections),
        preemptions=dict(lifecycle.preempted),
        bands=tuple(_count_bands(lifecycle)),
        num_prefilling=len(running.prefilling),
        num_decoding=len(running.online_decodes) + len(running.batch_decodes),
        max_rows=max_rows,
        total_blocks=pool.num_blocks,
        used_blocks=pool.num_blocks - pool.num_free,
        shared_blocks=pool.num_shared,
        cached_blocks=pool.num_cached,
        num_evicted_blocks=pool.num_evicted,
        step_error=step_model.error,
        step_bias=step_model.bias,
    )


def _count_bands(lifecycle: Lifecycle) -> list[BandCount]:
    live = {node.band: node.num_live for node in lifecycle.waiting.bands.values()}
    running = {band: lifecycle.running.num_of(band) for band in Band}
    return [
        BandCount(band, live.get(band, 0) - num_running, num_running)
        for band, num_running in running.items()
    ]
