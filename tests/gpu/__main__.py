"""`python -m tests.gpu`: check and measure the engine on a GPU, or anywhere.

Needs torch, numpy, tokenizers, safetensors, jinja2 and transformers, and nothing of the gateway.
Each part ends within its minutes. What was measured goes to `docs/benchmarks/gpu-<device>.json`,
part by part as each is done; on a CPU only where `--out` says.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# Before torch is imported: on a CPU, waiting threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import transformers

from engine.errors import EngineError
from scheduler.bench.drive import BenchError
from scheduler.bench.engine_bench import WORKLOADS
from scheduler.bench.part import Part, print_part
from scheduler.bench.report import BENCHMARKS_DIR, update_report
from scheduler.bench.setup import describe_device
from tests.gpu import bench, correctness, quality, soak, step_profiles, tune
from tests.gpu.asked import Asked
from tests.gpu.deadline import Deadline
from tests.gpu.shapes import MODELS

_MINUTES = 8.0  # of nine: the last thing begun may take a while
_QUICK_SOAK_S = 0.5

Parts = Iterator[tuple[str, Part]]


def _one(run: Callable[[Asked], Part]) -> Callable[[Asked], Parts]:
    def parts(asked: Asked) -> Parts:
        yield run.__module__.rpartition(".")[2], run(asked)

    return parts


PARTS: dict[str, Callable[[Asked], Parts]] = {
    "correctness": correctness.run,
    "tune": _one(tune.run),
    "quality": _one(quality.run),
    "bench": bench.run,
    "profile": step_profiles.run,
    "soak": _one(soak.run),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for; 1 where a goal was missed, or a part broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="for each part")
    parser.add_argument("--quick", action="store_true", help="seconds, at a token size")
    parser.add_argument(
        "--model", choices=MODELS, action="append", help="of bench and tune; default: all"
    )
    parser.add_argument(
        "--workload", choices=WORKLOADS, action="append", help="of bench; default: all"
    )
    parser.add_argument("--fp8", choices=("weights", "kv", "both"), default="", help="of bench")
    parser.add_argument("--out", type=Path, help="where the report goes")
    parser.add_argument("--commit", help="for a tree without its history")
    args = parser.parse_args(argv)
    directory = args.out or (None if args.device == "cpu" else BENCHMARKS_DIR)
    # A bar for every tiny checkpoint tells nobody anything.
    transformers.utils.logging.disable_progress_bar()
    met = True
    for name in args.part or PARTS:
        sys.stderr.write(f"{name} …\n")
        soaks_quickly = args.quick and name == "soak"
        asked = Asked(
            device=args.device,
            deadline=Deadline(_QUICK_SOAK_S if soaks_quickly else args.minutes * 60),
            quick=args.quick,
            fp8=args.fp8,
            models=tuple(args.model or ()),
            workloads=tuple(args.workload or ()),
            out=args.out,
        )
        # A part that breaks takes no other with it: time on a GPU is dear.
        try:
            for title, part in PARTS[name](asked):
                _publish(title, part, args.device, directory, args.commit)
                met = met and all(figure.met is not False for figure in part.figures.values())
        except (EngineError, BenchError) as exc:
            sys.stderr.write(f"python -m tests.gpu: {exc}\n")
            met = False
        except Exception:
            traceback.print_exc()
            met = False
    return 0 if met else 1


def _publish(
    title: str, part: Part, device: str, directory: Path | None, commit: str | None
) -> None:
    """Print a part, and put it into the report of its device."""
    print_part(title, part)
    for key, figure in part.figures.items():
        if figure.goal is None:
            sys.stdout.write(f"  {key}: {figure.value:.4g} {figure.unit}\n")
    if directory is None:
        return
    name, described = describe_device(device)
    path = update_report(
        "gpu-cpu" if device == "cpu" else name,
        title,
        part.figures,
        part.samples,
        directory=directory,
        device=described,
        commit=commit,
    )
    sys.stderr.write(f"{title} is in {path}\n")


if __name__ == "__main__":
    sys.exit(main())
