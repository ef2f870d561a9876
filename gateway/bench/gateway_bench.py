"""What a request and a streamed event cost: the gateway beside a bare Starlette echo.

Three servers on the same uvicorn take turns in each round: the bare echo, the same echo under the
guarded protocol, and the gateway with all it does but a model (a simulated engine draws the
tokens). Ratios are taken within a round, and the medians over rounds are stated. A streamed event
costs what a long answer takes more than a short one, over the events that it has more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from gateway.bench.load import request_of, send_all
from gateway.bench.subjects import BenchError, Subject, echo_subject, gateway_subject
from scheduler.bench.options import add_output_options, finish_part, positive
from scheduler.bench.part import Part, Row
from scheduler.bench.report import Figure, at_most
from scheduler.progress import Progress

_GUARDS_GOAL = 1.15
_LONG, _SHORT = 48, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBenchOptions:
    """Size a round: requests that each server answers, and long streams among them."""

    requests: int = 2000
    streams: int = 100
    connections: int = 16
    rounds: int = 15


@dataclass(frozen=True, slots=True)
class Costs:
    """State the CPU time of one server in one round, in microseconds."""

    request_us: float
    event_us: float


def measure(options: GatewayBenchOptions, progress: Progress) -> Part:
    """Run all rounds. Raises: `BenchError`."""
    with contextlib.ExitStack() as stack:
        subjects = [
            stack.enter_context(echo_subject(is_guarded=False)),
            stack.enter_context(echo_subject(is_guarded=True)),
            stack.enter_context(gateway_subject()),
        ]
        rounds: list[list[Costs]] = []
        # The first one warms up: connections, caches, the allocator.
        for number in range(options.rounds + 1):
            costs = [_measure(subject, options) for subject in subjects]
            if number:
                rounds.append(costs)
            progress.advance(1, amount=len(subjects) * options.requests)
        return _make_part(options, subjects, rounds)


def _measure(subject: Subject, options: GatewayBenchOptions) -> Costs:
    request_s = _cpu_s(subject, options, options.requests, num_tokens=1, streams=False)
    short_s = _cpu_s(subject, options, options.streams, num_tokens=_SHORT, streams=True)
    long_s = _cpu_s(subject, options, options.streams, num_tokens=_LONG, streams=True)
    num_events = options.streams * (_LONG - _SHORT)
    return Costs(request_s / options.requests * 1e6, (long_s - short_s) / num_events * 1e6)


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


def _make_part(
    options: GatewayBenchOptions, subjects: Sequence[Subject], rounds: list[list[Costs]]
) -> Part:
    part = Part()
    for index, subject in enumerate(subjects):
        name = subject.name.replace(" ", "_")
        request_us = median(costs[index].request_us for costs in rounds)
        event_us = median(costs[index].event_us for costs in rounds)
        part.figures[f"{name}_cpu_us_per_request"] = Figure(request_us, "µs")
        part.figures[f"{name}_cpu_us_per_event"] = Figure(event_us, "µs")
        note = f"{request_us:.0f} µs a request, {event_us:.1f} µs an event"
        part.rows.append(Row(subject.name, None, note=note))
        part.samples[subject.name] = [asdict(costs[index]) for costs in rounds]
    guards = median(guarded.request_us / echo.request_us for echo, guarded, _ in rounds)
    part.figures["guards_over_echo"] = at_most(guards, _GUARDS_GOAL, "ratio")
    part.figures["gateway_over_echo"] = Figure(
        median(gateway.request_us / echo.request_us for echo, _, gateway in rounds), "ratio"
    )
    part.figures["cpu_ms_per_request"] = Figure(
        median(gateway.request_us for _, _, gateway in rounds) / 1000, "ms"
    )
    part.samples["conditions"] = asdict(options)
    return part


def main(argv: Sequence[str] | None = None, *, prog: str = "sluice bench gateway") -> int:
    """Measure, print, and write the report; returns the exit code."""
    args = _parser(prog).parse_args(argv)
    options = GatewayBenchOptions(
        requests=args.requests,
        streams=args.streams,
        connections=args.connections,
        rounds=args.rounds,
    )
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
    add_output_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
