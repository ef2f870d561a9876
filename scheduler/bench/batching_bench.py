"""What continuous batching and chunked prefill buy on this machine, beside batches run to the end.

One engine; the same requests in each round for every way of batching: lengths and arrivals of an
excerpt of a trace, scaled, with random prompts. A round runs each way twice. All at once, which
tells how many tokens a second it makes; then as they came in the trace, at a share of the rate
that continuous batching would just sustain, which tells how long people wait. Everyone has the
same number of rows. Nothing is found in a cache, and nobody is refused.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

from engine.contract import EngineInfo
from engine.errors import EngineError
from scheduler.batching.baselines import BASELINES, BatchingConfig, make_baseline
from scheduler.bench.drive import BenchError, percentile
from scheduler.bench.options import add_output_options, finish_part, positive
from scheduler.bench.part import Part, Row
from scheduler.bench.replay import Coming, Replay, Server, replay
from scheduler.bench.report import Figure
from scheduler.bench.setup import DEMO, Bench, Options, open_bench, run_conditions
from scheduler.bench.shapes import SHAPES
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.progress import Progress
from scheduler.simulator.batching_suite import AZURE_EXCERPT, CONTINUOUS
from scheduler.simulator.traces import read_trace

# Of a request, whatever the model's context is, so that figures of one trace stay comparable.
_MAX_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingBenchOptions:
    """Say what is run.

    There are `requests` of the trace, their lengths times `scale`. All have `rows` rows, and a
    step of chunked prefill computes `chunk` tokens, decodes included. `load` is a share of the
    rate that continuous batching sustains; a batch that is not full waits `timeout_s`.
    """

    trace: Path = AZURE_EXCERPT
    requests: int = 96
    scale: float = 0.2
    rows: int = 16
    chunk: int = 128
    load: float = 0.6
    timeout_s: float = 0.1
    rounds: int = 3
    seed: int = 0


@dataclass(slots=True)
class Results:
    """Gather what one way of batching measured, a value a round."""

    output_tokens_per_s: list[float] = field(default_factory=list)
    ttft_p50_s: list[float] = field(default_factory=list)
    ttft_p99_s: list[float] = field(default_factory=list)
    latency_per_token_p50_s: list[float] = field(default_factory=list)
    latency_per_token_p99_s: list[float] = field(default_factory=list)
    max_gap_p99_s: list[float] = field(default_factory=list)

    def take(self, at_once: Replay, loaded: Replay) -> None:
        journeys = loaded.journeys
        self.output_tokens_per_s.append(at_once.output_tokens_per_s)
        ttft_s = [journey.ttft_s for journey in journeys]
        self.ttft_p50_s.append(percentile(ttft_s, 0.5))
        self.ttft_p99_s.append(percentile(ttft_s, 0.99))
        per_token_s = [journey.latency_per_token_s for journey in journeys]
        self.latency_per_token_p50_s.append(percentile(per_token_s, 0.5))
        self.latency_per_token_p99_s.append(percentile(per_token_s, 0.99))
        self.max_gap_p99_s.append(percentile([j.max_gap_s for j in journeys], 0.99))


def measure(bench: Bench, options: BatchingBenchOptions, progress: Progress) -> Part:
    """Run all ways of batching in turn, round after round, after one that warms up.

    All rounds have the same requests: the first step of a size costs a CPU several times as much,
    since operators are prepared for it, and a server that has run for long has seen them all.
    """
    names = (*CONTINUOUS, *BASELINES)
    results: dict[str, Results] = {}
    loads: list[float] = []
    requests = _draw_requests(bench, options)
    at_once = [replace(request, at_s=0.0) for request in requests]
    for number in range(options.rounds + 1):
        if number <= 1:  # what warms up is forgotten
            results, loads = {name: Results() for name in names}, []
        loaded: list[Coming] = []
        # Continuous batching first, for it sets the pace.
        for name in names:
            all_at_once = _run(bench, options, name, at_once)
            if not loaded:
                rate = options.load * len(requests) / all_at_once.wall_s
                loaded = _at_rate(requests, rate)
                loads.append(rate)
            results[name].take(all_at_once, _run(bench, options, name, loaded))
            progress.advance(1, amount=2 * sum(r.num_output_tokens for r in requests))
    return _make_part(bench, options, results, loads)


def _run(
    bench: Bench, options: BatchingBenchOptions, name: str, requests: Sequence[Coming]
) -> Replay:
    bench.engine.reset()
    return replay(make_server(name, bench.info, options), bench.engine, requests)


def make_server(name: str, info: EngineInfo, options: BatchingBenchOptions) -> Server:
    """Make one way of batching; `name` is a baseline, or one of `CONTINUOUS`."""
    if name in BASELINES:
        batching = BatchingConfig(
            batch_size=options.rows,
            timeout_s=options.timeout_s,
            window_size=4 * options.rows,
            max_batch_tokens=options.rows * min(_MAX_TOKENS, info.max_model_len) // 4,
            max_num_queued=options.requests,
        )
        return make_baseline(name, info, batching)
    is_chunked = name == "continuous"
    config = first_come(prefix_caching=False, max_num_queued=2 * options.requests)
    config = replace(config, composer=replace(config.composer, prefill_first=not is_chunked))
    num_step_tokens = options.chunk if is_chunked else info.max_num_batched_tokens
    info = replace(info, max_num_seqs=options.rows, max_num_batched_tokens=num_step_tokens)
    return Scheduler(info, config)


def _draw_requests(bench: Bench, options: BatchingBenchOptions) -> list[Coming]:
    """Take the first requests of the trace, and make up their prompts."""
    draw = random.Random(options.seed)
    part = read_trace(options.trace, limit=options.requests).arrivals
    max_len = min(_MAX_TOKENS, bench.info.max_model_len)
    requests = []
    for arrival in part:
        num_output = min(max_len // 2, max(1, round(arrival.num_output_tokens * options.scale)))
        num_prompt = max(1, round(arrival.num_prompt_tokens * options.scale))
        num_prompt = min(max_len - num_output, num_prompt)
        prompt = array("i", (draw.randrange(bench.info.vocab_size) for _ in range(num_prompt)))
        requests.append(Coming(arrival.at_s - part[0].at_s, prompt, num_output))
    return requests


def _check_trace(options: BatchingBenchOptions) -> None:
    if len(read_trace(options.trace, limit=options.requests).arrivals) < options.requests:
        raise BenchError(f"{options.trace} has no {options.requests} requests")


def _at_rate(requests: Sequence[Coming], rate: float) -> list[Coming]:
    """Stretch the times between arrivals so that `rate` come a second."""
    factor = len(requests) / rate / max(requests[-1].at_s, 1e-9)
    return [replace(request, at_s=request.at_s * factor) for request in requests]


def _make_part(
    bench: Bench,
    options: BatchingBenchOptions,
    results: Mapping[str, Results],
    loads: Sequence[float],
) -> Part:
    part = Part()
    suffix = "" if bench.subject == DEMO else f"_{bench.subject}"
    for name, result in results.items():
        key = f"{name}{suffix}"
        part.figures |= {
            f"{key}_output_tokens_per_s": Figure(median(result.output_tokens_per_s), "tokens/s"),
            f"{key}_ttft_p50_ms": Figure(median(result.ttft_p50_s) * 1000, "ms"),
            f"{key}_ttft_p99_ms": Figure(median(result.ttft_p99_s) * 1000, "ms"),
            f"{key}_latency_per_token_p50_ms": Figure(
                median(result.latency_per_token_p50_s) * 1000, "ms"
            ),
            f"{key}_latency_per_token_p99_ms": Figure(
                median(result.latency_per_token_p99_s) * 1000, "ms"
            ),
            f"{key}_max_gap_p99_ms": Figure(median(result.max_gap_p99_s) * 1000, "ms"),
        }
        part.samples[name] = asdict(result)
        part.rows.append(Row(name, median(result.output_tokens_per_s), note=_note(result)))
    _compare(results, suffix, part)
    part.samples["conditions"] = {
        **asdict(options),
        **run_conditions(),
        "trace": options.trace.name,
        "compiled_operators": bench.uses_native,
        "requests_per_s": loads,
        "load_average": os.getloadavg()[0],
    }
    return part


def _compare(results: Mapping[str, Results], suffix: str, part: Part) -> None:
    """Hold the ways of batching against each other: the median of the rounds' ratios."""
    continuous, unchunked = (results[name] for name in CONTINUOUS)
    for name in (*BASELINES, "unchunked"):
        other = results[name]
        part.figures[f"continuous_over_{name}{suffix}"] = _ratio(
            continuous.output_tokens_per_s, other.output_tokens_per_s
        )
        part.figures[f"continuous_over_{name}{suffix}_ttft_p99_speedup"] = _ratio(
            other.ttft_p99_s, continuous.ttft_p99_s
        )
    part.figures[f"chunked{suffix}_max_gap_speedup"] = _ratio(
        unchunked.max_gap_p99_s, continuous.max_gap_p99_s
    )


def _ratio(own: Sequence[float], other: Sequence[float]) -> Figure:
    return Figure(median(a / b for a, b in zip(own, other, strict=True)), "ratio")


def _note(result: Results) -> str:
    return (
        f"first token p50 {median(result.ttft_p50_s) * 1000:.0f} ms, "
        f"p99 {median(result.ttft_p99_s) * 1000:.0f} ms; "
        f"{median(result.latency_per_token_p50_s) * 1000:.1f} ms a token; "
        f"longest gap p99 {median(result.max_gap_p99_s) * 1000:.0f} ms"
    )


def main(argv: Sequence[str] | None = None, *, prog: str = "sluice bench batching") -> int:
    """Measure, print, and write the report; returns the exit code."""
    # Read by OpenMP when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = _parser(prog).parse_args(argv)
    options = BatchingBenchOptions(
        requests=args.requests,
        scale=args.scale,
        rows=args.rows,
        chunk=args.chunk,
        load=args.load,
        rounds=args.rounds,
    )
    engine = Options(
        shape=args.shape,
        model_dir=args.model,
        dtype=args.dtype,
        num_threads=args.threads,
        peers=False,
    )
    num_runs = (options.rounds + 1) * (len(BASELINES) + len(CONTINUOUS))
    try:
        _check_trace(options)
        with open_bench(engine) as bench, Progress(num_runs, label="batching") as progress:
            part = measure(bench, options, progress)
            title = f"batching {bench.slug} {bench.info.dtype}"
    except (EngineError, BenchError) as exc:
        sys.stderr.write(f"{prog}: {exc}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{prog}: interrupted; nothing is written\n")
        return 130
    return finish_part("batching", title, part, directory=args.out, as_json=args.json)


def _parser(prog: str) -> argparse.ArgumentParser:
    default = BatchingBenchOptions()
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measure continuous batching and chunked prefill beside static, dynamic, "
        "padded and sorted batches on a CPU.",
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--shape", default=DEMO, choices=(DEMO, *SHAPES), help="a built-in shape")
    model.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face directory")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--threads", type=positive, help="torch's threads; default: the engine's")
    parser.add_argument("--requests", type=positive, default=default.requests, help="a round")
    parser.add_argument(
        "--scale", type=_share, default=default.scale, help="of the trace's lengths"
    )
    parser.add_argument("--rows", type=positive, default=default.rows, help="at once")
    parser.add_argument("--chunk", type=positive, default=default.chunk, help="tokens a step")
    parser.add_argument(
        "--load", type=_share, default=default.load, help="of what continuous batching sustains"
    )
    parser.add_argument("--rounds", type=positive, default=default.rounds, help="after a warm-up")
    add_output_options(parser)
    return parser


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
