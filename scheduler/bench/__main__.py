"""`python -m scheduler.bench`: measure the engine on this machine.

Needs nothing but the engine, so it runs on a bare GPU machine; `sluice bench engine` is the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.errors import EngineError
from scheduler.bench.drive import BenchError
from scheduler.bench.engine_bench import (
    DEFAULT_WORKLOADS,
    WORKLOADS,
    as_json,
    measure,
    suite,
)
from scheduler.bench.part import Part, print_part
from scheduler.bench.report import BENCHMARKS_DIR, update_report
from scheduler.bench.setup import DEMO, Options, describe_device
from scheduler.bench.shapes import SHAPES


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m scheduler.bench") -> int:
    """Measure, print, and write the report; returns the exit code."""
    # Read by OpenMP when torch is imported; for the peer as for us.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = _parser(prog).parse_args(argv)
    directory = args.out or (BENCHMARKS_DIR if BENCHMARKS_DIR.is_dir() else None)
    parts: dict[str, Part] = {}
    try:
        for title, part in _measure(args, directory):
            parts[title] = part
            if part.complete and not args.json:
                print_part(title, part)
    except (EngineError, BenchError) as exc:
        sys.stderr.write(f"{prog}: {exc}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{prog}: interrupted; what was measured is written\n")
        return 130
    if args.json:
        sys.stdout.write(as_json(parts) + "\n")
    if directory is not None:
        sys.stderr.write(f"figures are in {directory}\n")
    return 0


def _measure(args: argparse.Namespace, directory: Path | None) -> Iterator[tuple[str, Part]]:
    """Yield each part as it grows, once the report in `directory` has what there is of it."""
    options = _options(args)
    runs = suite(options) if args.suite else [(options, args.workload or DEFAULT_WORKLOADS)]
    for run, workloads in runs:
        model = run.model_dir or run.shape
        sys.stderr.write(f"{model}: {', '.join(workloads)} …\n")
        for title, part in measure(run, workloads):
            if directory is not None:
                name, device = describe_device(run.device)
                update_report(
                    name,
                    title,
                    part.figures,
                    part.samples,
                    directory=directory,
                    device=device,
                    complete=part.complete,
                )
            yield title, part


def _options(args: argparse.Namespace) -> Options:
    return Options(
        shape=args.shape,
        model_dir=args.model,
        dummy=args.load_format == "dummy",
        dtype=args.dtype,
        device=args.device,
        num_threads=args.threads,
        batches=args.batch,
        rounds=args.rounds,
        ceiling_rounds=args.rounds,
        scale=args.scale or (0.125 if args.device == "cpu" else 1.0),
        native=args.native,
        peers=args.peers,
        profile_out=args.profile_out,
        step_tokens=args.step_tokens,
        weight_dtype=args.weight_dtype,
        kv_dtype=args.kv_dtype,
        dependent_launch=args.dependent_launch,
        fused_matvec=args.fused_matvec,
    )


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measure the engine: tokens per second, its share of what the machine could "
        "do at best, and transformers beside it where that is installed.",
    )
    _add_subject(parser)
    _add_size(parser)
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="leave transformers out"
    )
    parser.add_argument(
        "--profile-out",
        type=Path,
        metavar="FILE",
        help="where step-sweep writes the profile that it fits; default: the report alone has it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the report goes; default: docs/benchmarks"
    )
    return parser


def _add_subject(parser: argparse.ArgumentParser) -> None:
    """Let the caller say what is measured: the model, the work, and what computes it."""
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--shape", default="llama-30m", choices=(*SHAPES, DEMO), help="a built-in shape"
    )
    model.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face directory")
    model.add_argument(
        "--suite", action="store_true", help="the runs behind the documented figures of a CPU"
    )
    parser.add_argument(
        "--workload",
        action="append",
        choices=WORKLOADS,
        help=f"default: {', '.join(DEFAULT_WORKLOADS)}",
    )
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--weight-dtype", choices=("fp8",), help="of linear layers")
    parser.add_argument("--kv-dtype", choices=("fp8",), help="of the KV cache")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--dependent-launch",
        action=argparse.BooleanOptionalAction,
        help="let kernels begin while the one before them ends; default: on Hopper",
    )
    parser.add_argument(
        "--fused-matvec",
        action=argparse.BooleanOptionalAction,
        help="norm, multiply, gate and add in one kernel in steps of up to four tokens; "
        "default: on Hopper, for as many as gain",
    )
    parser.add_argument("--threads", type=_positive, help="torch's threads; default: the engine's")
    parser.add_argument(
        "--native",
        choices=("auto", "off"),
        default="auto",
        help="the compiled operators: where they are built, or not at all",
    )


def _add_size(parser: argparse.ArgumentParser) -> None:
    """Let the caller say how large and how often."""
    parser.add_argument(
        "--batch", type=_batches, metavar="N[,N…]", help="batches of decode-sweep and profile"
    )
    parser.add_argument(
        "--step-tokens", type=_positive, metavar="N", help="tokens that a step computes at most"
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="after one that warms up")
    parser.add_argument(
        "--scale",
        type=_scale,
        help="of the requests and lengths of nano, 1k1k, 64k, uneven and loop-lag; "
        "0.125 on a CPU, 1 on a GPU",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _batches(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _scale(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
