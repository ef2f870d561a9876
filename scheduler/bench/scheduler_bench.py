"""What the scheduler itself costs: the thread's CPU time of `plan`, `report` and `offer`.

The engine answers at once and for nothing, in virtual time at the price of a profile. Rows are full
and the queue is kept at its size: a request that ends is replaced by a new one of its tenant, so
tenants keep their shares of the queue. Tenants have weights, bands and promises of several kinds;
how many requests a tenant has queued falls with its rank, by Zipf's law. A few requests of the
priority band are always live and take their slots from others. One prompt in two hundred is long,
and there are so few blocks that rows are sent back for want of them. Python's garbage collector is
on as it is in the server, and its pauses count where they fall.

The goals are for a GPU's profile, by which all rows decode in each step. At the middle queue the
same is measured by a CPU's, where rows sit out. Beside that stand the single calls that a tenant
can make longest (`scheduler.bench.spikes`).
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import random
import sys
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from statistics import median
from typing import Any

from engine.contract import EngineInfo, SamplingParams
from engine.native.row_library import load_rows
from engine.step_cost import load_profile
from scheduler.bench.drive import percentile
from scheduler.bench.null_engine import NullEngine
from scheduler.bench.options import add_output_options, finish_part, positive
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure, at_most
from scheduler.bench.spikes import measure_spikes
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.progress import Progress
from scheduler.request import Admit, Band, Request, Slo

_P50_GOAL_US = 200.0
_P99_GOAL_US = 600.0
_GROWTH_GOAL = 1.3
_SPIKE_GOAL_US = 1000.0
_PROFILE = "a100-llama-3-8b"
# By which a row costs more than what is paid for any step.
_HELD_PROFILE = "cpu-demo"
_MIXED = PRESETS["mixed"]
_WEIGHTS = (1.0, 2.0, 4.0, 8.0)
_BANDS = (*[Band.DEFAULT] * 7, Band.FLEX, Band.FLEX, Band.BATCH)
# Of the rows: more would leave them to the few tenants of the priority band alone.
_PRIORITY_SHARE = 1 / 16
_PRIORITY_TENANTS = 4
_LONG_SHARE = 1 / 200
_LONG_TOKENS = (8_000, 24_000)
_BLOCK_SIZE = 64
# So few that rows are short of them now and then.
_BLOCKS_PER_ROW = 8
# Promises long enough for the last in a queue of this length, or admission would refuse it.
_SLOS = (
    Slo(),
    Slo(ttft_s=1e9, tpot_s=0.2),
    Slo(ttft_s=2e9, tpot_s=0.1, max_gap_s=0.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerBenchOptions:
    """Say how large the load is; the middle one of `queued` is what the goals are for.

    `spike` requests wait where single calls are measured. `native` "off" leaves the compiled loops
    out where they are built.
    """

    running: int = 256
    queued: tuple[int, ...] = (1000, 10_000, 100_000)
    tenants: int = 1000
    steps: int = 2000
    rounds: int = 3
    spike: int = 20_000
    native: str = "auto"
    seed: int = 0


@dataclass(slots=True)
class Times:
    """Hold one round's CPU times in µs: a value a step, but for `offer`, a value a request.

    `rows` are those in each step.
    """

    plan: list[float] = field(default_factory=list)
    report: list[float] = field(default_factory=list)
    offer: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    num_preempted: int = 0
    num_collections: int = 0

    @property
    def step(self) -> list[float]:
        return [a + b for a, b in zip(self.plan, self.report, strict=True)]

    @property
    def request_us(self) -> float:
        """What plans and reports cost for each request that ended in them; another was offered."""
        return sum(self.step) / len(self.offer)


class Load:
    """Keep a scheduler's rows full and its queue at its size.

    `live` are the requests that wait or run, with the numbers of their tenants.
    """

    def __init__(
        self, options: SchedulerBenchOptions, num_queued: int, profile: str = _PROFILE
    ) -> None:
        self._draw = random.Random(options.seed)
        self._num_tenants = options.tenants
        self._cumulative = list(accumulate(1 / rank for rank in range(1, options.tenants + 1)))
        self._num_requests = 0
        self.live: dict[str, tuple[int, Request]] = {}
        self.now = 0.0
        self.times = Times()
        info = _engine_info(options.running)
        self.engine = NullEngine(info, load_profile(profile))
        self.scheduler = make_scheduler(
            info,
            max_num_queued=2 * (options.running + num_queued),
            compiled=options.native == "auto",
        )
        num_priority = math.ceil(_PRIORITY_SHARE * options.running)
        for number in range(options.running + num_queued - num_priority):
            # One for each tenant first.
            self._offer(number if number < options.tenants else self._draw_tenant())
        for number in range(num_priority):
            self._offer(options.tenants + number % _PRIORITY_TENANTS)

    def step(self) -> None:
        """Plan, answer and report one step, and replace what has ended in it."""
        before_ns = time.thread_time_ns()
        plan = self.scheduler.plan(self.now)
        self.times.plan.append((time.thread_time_ns() - before_ns) / 1000)
        assert plan is not None, "there is always something to compute"
        self.times.rows.append(len(plan.decodes) + len(plan.slices))
        self.times.num_preempted += len(plan.preempted)
        result = self.engine.collect(self.engine.launch(plan))
        self.now += result.step_s
        before_ns = time.thread_time_ns()
        outputs = self.scheduler.report(result, self.now)
        self.times.report.append((time.thread_time_ns() - before_ns) / 1000)
        for output in outputs:
            if output.finish_reason is not None:
                tenant, _ = self.live.pop(output.request_id)
                self._offer(tenant)

    def _offer(self, tenant: int) -> None:
        request = self._make_request(tenant)
        before_ns = time.thread_time_ns()
        answer = self.scheduler.offer(request, self.now)
        self.times.offer.append((time.thread_time_ns() - before_ns) / 1000)
        assert isinstance(answer, Admit), answer.reason
        self.live[request.request_id] = tenant, request

    def _make_request(self, tenant: int) -> Request:
        draw = self._draw
        self._num_requests += 1
        is_priority = tenant >= self._num_tenants
        band = Band.PRIORITY if is_priority else _BANDS[tenant % len(_BANDS)]
        num_prompt_tokens = self._draw_length(median=180, most=1500)
        if not is_priority and draw.random() < _LONG_SHARE:
            num_prompt_tokens = draw.randrange(*_LONG_TOKENS)
        # Two bytes a token: ids below 65,536, and no two prompts alike.
        prompt = array("i", array("H", draw.randbytes(2 * num_prompt_tokens)))
        return Request(
            request_id=str(self._num_requests),
            tenant_id=f"tenant-{tenant}",
            key_id=f"key-{tenant}-{draw.randrange(2)}",
            prompt_token_ids=prompt,
            params=SamplingParams(
                max_tokens=self._draw_length(median=100, most=600), ignore_eos=True
            ),
            cache_salt=f"tenant-{tenant}".encode(),
            arrival_s=self.now,
            weight=_WEIGHTS[tenant % len(_WEIGHTS)],
            band=band,
            # Work of the batch band waits as long as there is any other.
            slo=Slo() if band is Band.BATCH else draw.choice(_SLOS),
        )

    def _draw_tenant(self) -> int:
        return self._draw.choices(range(self._num_tenants), cum_weights=self._cumulative)[0]

    def _draw_length(self, *, median: int, most: int) -> int:
        return max(16, min(most, round(self._draw.lognormvariate(math.log(median), 0.8))))


def make_scheduler(info: EngineInfo, *, max_num_queued: int, compiled: bool = True) -> Scheduler:
    """Make the scheduler that is measured: the server's."""
    admission = replace(_MIXED.admission, max_num_queued=max_num_queued)
    return Scheduler(info, replace(_MIXED, admission=admission), compiled=compiled)


def measure(options: SchedulerBenchOptions, progress: Progress) -> Part:
    """Measure queues of all sizes, their rounds in turn, each in a process of its own.

    What a queue of a hundred thousand leaves behind of the memory would make the next one slower.
    """
    rounds: dict[int, list[Times]] = {num_queued: [] for num_queued in options.queued}
    held: list[Times] = []
    middle = options.queued[len(options.queued) // 2]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as fresh:
        for _ in range(options.rounds):
            for num_queued in options.queued:
                rounds[num_queued].append(fresh.submit(_run, options, num_queued).result())
                progress.advance(1, amount=options.steps)
            held.append(fresh.submit(_run, options, middle, _HELD_PROFILE).result())
            progress.advance(1, amount=options.steps)
        spikes = fresh.submit(measure_spikes, options.spike).result()
    part = _make_part(options, rounds)
    _add_held(part, held)
    for name, times in spikes.items():
        part.figures[f"{name}_p50_us"] = at_most(median(times), _SPIKE_GOAL_US, "µs")
        part.samples[name] = [round(value, 1) for value in times]
    return part


def _run(options: SchedulerBenchOptions, num_queued: int, profile: str = _PROFILE) -> Times:
    load = Load(options, num_queued, profile)
    # All rows are taken and rows end in every step.
    for _ in range(max(20, options.steps // 4)):
        load.step()
    load.times = Times()
    before = _num_collections()
    for _ in range(options.steps):
        load.step()
    while not load.times.offer:
        # So few rows and steps that none has ended yet.
        load.step()
    load.times.num_collections = _num_collections() - before
    return load.times


def _make_part(options: SchedulerBenchOptions, rounds: dict[int, list[Times]]) -> Part:
    part = Part()
    middle = options.queued[len(options.queued) // 2]
    at_middle = rounds[middle]
    part.figures |= {
        "plan_report_p50_us": at_most(
            _over_rounds([t.step for t in at_middle], 0.5), _P50_GOAL_US, "µs"
        ),
        "plan_report_p99_us": at_most(
            _over_rounds([t.step for t in at_middle], 0.99), _P99_GOAL_US, "µs"
        ),
        "plan_p50_us": Figure(_over_rounds([t.plan for t in at_middle], 0.5), "µs"),
        "report_p50_us": Figure(_over_rounds([t.report for t in at_middle], 0.5), "µs"),
        "offer_p50_us": Figure(_over_rounds([t.offer for t in at_middle], 0.5), "µs"),
        "offer_p99_us": Figure(_over_rounds([t.offer for t in at_middle], 0.99), "µs"),
    }
    for num_queued, times in rounds.items():
        name = f"{num_queued // 1000}k" if num_queued % 1000 == 0 else str(num_queued)
        p50 = _over_rounds([t.step for t in times], 0.5)
        p99 = _over_rounds([t.step for t in times], 0.99)
        offer = _over_rounds([t.offer for t in times], 0.5)
        part.figures[f"plan_report_{name}_p50_us"] = Figure(p50, "µs")
        part.figures[f"offer_{name}_p50_us"] = Figure(offer, "µs")
        part.samples[name] = _describe(times)
        note = f"plan + report p50 {p50:.0f} µs, p99 {p99:.0f} µs; offer p50 {offer:.0f} µs"
        part.rows.append(Row(f"{num_queued:,} queued", None, note=note))
    _add_growth(options, rounds, part)
    part.samples["conditions"] = {
        **asdict(options),
        "is_compiled": options.native == "auto" and load_rows() is not None,
        "gc_enabled": gc.isenabled(),
        "gc_threshold": gc.get_threshold(),
        "clock_resolution_us": time.get_clock_info("thread_time").resolution * 1e6,
    }
    return part


def _add_growth(options: SchedulerBenchOptions, rounds: dict[int, list[Times]], part: Part) -> None:
    """Hold the longest queue against the shortest, by steps and by what is served in them.

    From more that waits more is found that fits, so a step begins and ends more requests.
    """
    least, most = min(options.queued), max(options.queued)
    name = f"growth_{most // 1000}k_over_{least // 1000}k" if least >= 1000 else "growth"
    pairs = list(zip(rounds[most], rounds[least], strict=True))
    ratios = [median(long.step) / median(short.step) for long, short in pairs]
    per_request = [long.request_us / short.request_us for long, short in pairs]
    part.figures[name] = at_most(median(ratios), _GROWTH_GOAL, "ratio")
    part.figures[f"{name}_a_request"] = at_most(median(per_request), _GROWTH_GOAL, "ratio")
    part.samples |= {"growth": ratios, "growth_a_request": per_request}


def _add_held(part: Part, rounds: list[Times]) -> None:
    """Say what a step costs while rows sit out."""
    steps = [times.step for times in rounds]
    p50, p99 = _over_rounds(steps, 0.5), _over_rounds(steps, 0.99)
    part.figures["plan_report_held_p50_us"] = Figure(p50, "µs")
    part.figures["plan_report_held_p99_us"] = Figure(p99, "µs")
    part.samples["held"] = _describe(rounds)
    note = f"plan + report p50 {p50:.0f} µs, p99 {p99:.0f} µs"
    part.rows.append(Row("rows sit out", None, note=note))


def _describe(rounds: list[Times]) -> list[dict[str, Any]]:
    """Give quantiles of each round: a value for each step would be most of the file."""
    return [
        {
            **{
                f"{name}_us": {
                    f"p{100 * q:g}": round(percentile(values, q), 1)
                    for q in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
                }
                for name, values in (
                    ("plan", times.plan),
                    ("report", times.report),
                    ("plan_report", times.step),
                    ("offer", times.offer),
                )
            },
            "rows_p50": median(times.rows),
            "num_preempted": times.num_preempted,
            "num_collections": times.num_collections,
        }
        for times in rounds
    ]


def _over_rounds(rounds: Sequence[Sequence[float]], q: float) -> float:
    return median(percentile(values, q) for values in rounds)


def _num_collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _engine_info(num_rows: int) -> EngineInfo:
    return EngineInfo(
        model_type="null",
        vocab_size=1 << 16,
        max_model_len=32_768,
        max_num_seqs=num_rows,
        max_num_batched_tokens=2048,
        # One long prompt fits beside rows of the usual lengths.
        num_blocks=num_rows * _BLOCKS_PER_ROW + _LONG_TOKENS[1] // _BLOCK_SIZE + _BLOCKS_PER_ROW,
        block_size=_BLOCK_SIZE,
        eos_token_ids=frozenset(),
    )


def main(argv: Sequence[str] | None = None, *, prog: str = "sluice bench scheduler") -> int:
    """Measure, print, and write the report; returns the exit code."""
    args = _parser(prog).parse_args(argv)
    options = SchedulerBenchOptions(
        running=args.running,
        queued=args.queued,
        tenants=args.tenants,
        steps=args.steps,
        rounds=args.rounds,
        spike=args.spike,
        native=args.native,
    )
    num_runs = (len(options.queued) + 1) * options.rounds
    try:
        with Progress(num_runs, label="scheduler", unit="steps") as progress:
            part = measure(options, progress)
    except KeyboardInterrupt:
        sys.stderr.write(f"{prog}: interrupted; nothing is written\n")
        return 130
    return finish_part("scheduler", "plan and report", part, directory=args.out, as_json=args.json)


def _parser(prog: str) -> argparse.ArgumentParser:
    default = SchedulerBenchOptions()
    parser = argparse.ArgumentParser(
        prog=prog, description="Measure what the scheduler costs a step: thread CPU time."
    )
    parser.add_argument("--running", type=positive, default=default.running, help="rows")
    parser.add_argument(
        "--queued",
        type=_sizes,
        default=default.queued,
        metavar="N[,N…]",
        help="sizes of the queue; the middle one is held to the goals",
    )
    parser.add_argument("--tenants", type=positive, default=default.tenants)
    parser.add_argument("--steps", type=positive, default=default.steps, help="in each round")
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument("--spike", type=positive, default=default.spike, help="at once")
    parser.add_argument(
        "--native",
        choices=("auto", "off"),
        default=default.native,
        help="the compiled loops: where they are built, or not at all",
    )
    add_output_options(parser)
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(sorted(positive(part) for part in text.split(",")))
    if sizes[0] < 2:
        raise argparse.ArgumentTypeError("must be at least 2")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
