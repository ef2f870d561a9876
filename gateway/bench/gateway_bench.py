"""What a request and a streamed event cost: the gateway beside a bare echo, and beside LiteLLM.

Servers take turns in each round: a bare Starlette echo, the same echo under the guarded protocol,
the gateway with all it does but a model (a simulated engine draws the tokens; the key is checked,
every limit of every scope is on, a row of the ledger is written), and LiteLLM's proxy, where it is
installed, which checks one master key and counts nothing. Two more gateways send traces, at the
default share and of every request. Ratios are taken within a round, and the
medians over rounds are stated. A streamed event costs what a long answer takes more than a short
one, over the events that it has more. Latencies are of a fixed rate, the gateway's over the
echo's; the script's time is Valkey's own count, for one of a request's operations.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.bench.figures import Costs, Round, make_part
from gateway.bench.latency import latencies_s
from gateway.bench.load import request_of, send_all
from gateway.bench.masks_cost import add_masks_cost
from gateway.bench.metrics_cost import add_metrics_cost
from gateway.bench.options import GatewayBenchOptions
from gateway.bench.subjects import (
    BenchError,
    Subject,
    echo_subject,
    gateway_subject,
    litellm_subject,
    traced_subject,
)
from gateway.store.script_time import script_time
from scheduler.bench.options import add_output_options, finish_part, positive
from scheduler.bench.part import Part
from scheduler.bench.report import at_most
from scheduler.progress import Progress

_LONG, _SHORT = 48, 1
LITELLM_VENV = Path.home() / ".cache" / "sluice" / "litellm"


def measure(options: GatewayBenchOptions, progress: Progress) -> Part:
    """Run all rounds. Raises: `BenchError`."""
    with contextlib.ExitStack() as stack:
        subjects = [
            stack.enter_context(echo_subject(is_guarded=False)),
            stack.enter_context(echo_subject(is_guarded=True)),
            stack.enter_context(gateway_subject()),
            # At the default share, and of every request.
            stack.enter_context(traced_subject("traced gateway", {})),
            stack.enter_context(traced_subject("all traced", {"SLUICE_TRACE_SHARE": "1"})),
        ]
        if options.litellm is not None:
            subjects.append(stack.enter_context(litellm_subject(options.litellm)))
        rounds: list[Round] = []
        # The first one warms up: connections, caches, the allocator.
        for number in range(options.rounds + 1):
            measured = _measure_round(subjects, options)
            if number:
                rounds.append(measured)
            progress.advance(1, amount=len(subjects) * options.requests)
        part = make_part(options, subjects, rounds)
        # What is not sent costs nothing: of those all of whose requests are traced, next to none.
        traces = subjects[4].num_traces()
        dropped = traces["dropped"] / max(sum(traces.values()), 1)
        part.figures["all_traced_dropped"] = at_most(dropped, 0.02, "share")
    # Once the servers are gone.
    add_metrics_cost(part)
    add_masks_cost(part)
    return part


def _measure_round(subjects: Sequence[Subject], options: GatewayBenchOptions) -> Round:
    echo, _, gateway = subjects[:3]
    assert gateway.redis_url is not None
    with script_time(gateway.redis_url) as script:
        costs = {subject.name: _measure(subject, options) for subject in subjects}
    # A call may do several operations: every request is reserved and settled, and one that goes on
    # after its first token says that its prompt waits no longer.
    num_ops = 2 * (options.requests + 2 * options.streams) + options.streams
    return Round(costs, script.us / num_ops, _p99_s(echo, options), _p99_s(gateway, options))


def _measure(subject: Subject, options: GatewayBenchOptions) -> Costs:
    if subject.name == "litellm":
        # Ten times as slow: a tenth of the requests; its streams are another engine's.
        num_requests = max(options.requests // 10, 50)
        request_s = _cpu_s(subject, options, num_requests, num_tokens=1, streams=False)
        return Costs(request_s / num_requests * 1e6, float("nan"))
    request_s = _cpu_s(subject, options, options.requests, num_tokens=1, streams=False)
    short_s = _cpu_s(subject, options, options.streams, num_tokens=_SHORT, streams=True)
    long_s = _cpu_s(subject, options, options.streams, num_tokens=_LONG, streams=True)
    num_events = options.streams * (_LONG - _SHORT)
    return Costs(request_s / options.requests * 1e6, (long_s - short_s) / num_events * 1e6)


def _p99_s(subject: Subject, options: GatewayBenchOptions) -> float:
    request = request_of(subject, num_tokens=1, streams=False)
    taken_s = asyncio.run(
        latencies_s(subject, request, rate_rps=options.rate_rps, for_s=options.latency_s)
    )
    return sorted(taken_s)[int(0.99 * len(taken_s))]


def _cpu_s(
    subject: Subject,
    options: GatewayBenchOptions,
    num_requests: int,
    *,
    num_tokens: int,
    streams: bool,
) -> float:
    request = request_of(subject, num_tokens=num_tokens, streams=streams)
    before_s = subject.cpu_s()
    asyncio.run(
        send_all(
            subject.port,
            request,
            num_requests=num_requests,
            num_connections=options.connections,
        )
    )
    return subject.cpu_s() - before_s


def main(argv: Sequence[str] | None = None, *, prog: str = "sluice bench gateway") -> int:
    """Measure, print, and write the report; returns the exit code."""
    args = _parser(prog).parse_args(argv)
    options = GatewayBenchOptions(
        requests=args.requests,
        streams=args.streams,
        connections=args.connections,
        rounds=args.rounds,
        litellm=args.litellm if (args.litellm / "bin" / "litellm").exists() else None,
    )
    if options.litellm is None:
        sys.stderr.write(f"{prog}: LiteLLM is left out: there is none in {args.litellm}\n")
    try:
        with Progress(options.rounds + 1, label="gateway", unit="requests") as progress:
            part = measure(options, progress)
    except BenchError as exc:
        sys.stderr.write(f"{prog}: {exc}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{prog}: interrupted; nothing is written\n")
        return 130
    return finish_part("gateway", "cpu", part, directory=args.out, as_json=args.json)


def _parser(prog: str) -> argparse.ArgumentParser:
    default = GatewayBenchOptions()
    parser = argparse.ArgumentParser(
        prog=prog, description="Measure the CPU of a request and an event, beside a bare echo."
    )
    parser.add_argument("--requests", type=positive, default=default.requests, help="in each round")
    parser.add_argument("--streams", type=positive, default=default.streams, help="in each round")
    parser.add_argument("--connections", type=positive, default=default.connections)
    parser.add_argument("--rounds", type=positive, default=default.rounds)
    parser.add_argument(
        "--litellm",
        type=Path,
        default=LITELLM_VENV,
        help="a virtual environment with litellm[proxy] (docs/benchmarks/litellm.md); left out "
        "where there is none",
    )
    add_output_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
