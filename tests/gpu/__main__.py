"""`python -m tests.gpu`: check and measure the engine on a GPU, or anywhere.

Needs torch, numpy, tokenizers, safetensors, jinja2 and transformers, and nothing of the gateway.
Each part has its minutes, and each of its stages runs in a process of its own. What is measured is
written as it is, to `docs/benchmarks/gpu-<device>.json` or below `--out`; on a CPU there alone.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

# Before torch is imported: on a CPU, waiting threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from engine.errors import EngineError
from scheduler.bench.drive import BenchError
from scheduler.bench.engine_bench import WORKLOADS
from scheduler.bench.report import BENCHMARKS_DIR
from tests.gpu.asked import Asked
from tests.gpu.calls import CALL_MINUTES, CALLS, Errand
from tests.gpu.conductor import MISSED, Conductor, Interrupted, end_when_asked
from tests.gpu.deadline import Deadline
from tests.gpu.die_with_parent import die_with_parent
from tests.gpu.publish import Publisher
from tests.gpu.shapes import MODELS
from tests.gpu.stages import PARTS, is_known, list_stages, run_stage

# For each part; the last thing begun may take a while longer.
_MINUTES = dict.fromkeys(PARTS, 8.0) | {"soak": 1.0}
_QUICK_SOAK_MINUTES = 1 / 60
_ENDLESS_S = 1e9
# The kernels' tests take eight, and each family one.
_MANY_CORES = 12


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 where a goal was missed, a stage broke, or a check had no time."""
    args = parse(argv)
    if args.stage is None:
        return _run_all(args)
    if args.results is not None:
        # It was begun by `Conductor`, and has no one to tell without it.
        die_with_parent()
    # A crash shows where it was, and so does a hang that is about to be killed.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    return run_one(args)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--part", choices=PARTS, action="append", help="default: all")
    what.add_argument(
        "--call", type=int, choices=CALLS, help="what is prepared for ten minutes on a card"
    )
    what.add_argument("--stage", help="one stage, in this process")
    parser.add_argument("--list", action="store_true", help="name the stages and do nothing")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--minutes", type=float, help="for each part; default: 8, soak 1")
    parser.add_argument("--quick", action="store_true", help="seconds, at a token size")
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument(
        "--model", choices=MODELS, action="append", help="of bench and tune; default: all"
    )
    parser.add_argument(
        "--workload", choices=WORKLOADS, action="append", help="of bench; default: all"
    )
    parser.add_argument("--fp8", choices=("weights", "kv", "both"), default="", help="of bench")
    # Stages run in the repository, wherever this was said.
    parser.add_argument(
        "--out", type=lambda path: Path(path).absolute(), help="where the report goes"
    )
    parser.add_argument("--commit", help="for a tree without its history")
    parser.add_argument("--results", type=Path, help="where a stage tells what it measured")
    return parser.parse_args(argv)


def run_one(args: argparse.Namespace) -> int:
    """Run a stage in this process, as `Conductor` begins it; returns the exit code."""
    minutes = args.minutes or _MINUTES[args.stage.partition(":")[0]]
    if args.quick and args.stage == "soak":
        minutes = min(minutes, _QUICK_SOAK_MINUTES)
    asked = _asked(args, Deadline(minutes * 60))
    publisher = Publisher(
        asked=asked,
        directory=args.out or (BENCHMARKS_DIR if asked.on_gpu else None),
        commit=args.commit,
        results=args.results,
    )
    met: dict[str, bool] = {}
    _look_in_tuned_settings(asked)
    try:
        for title, part in run_stage(args.stage, asked):
            met[title] = publisher.publish(title, part)
    except (EngineError, BenchError) as exc:
        sys.stderr.write(f"python -m tests.gpu: {exc}\n")
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0 if all(met.values()) else MISSED


def _look_in_tuned_settings(asked: Asked) -> None:
    """Launch kernels with what an earlier stage of this run found best."""
    if asked.on_gpu and asked.tuned_settings is not None and find_spec("triton") is not None:
        # Imported late: it needs Triton, and loads torch.
        from engine.kernels import tuned

        tuned.look_in(asked.tuned_settings)


def _run_all(args: argparse.Namespace) -> int:
    """Run the stages of what was asked for, one after another."""
    conductor = Conductor(Deadline(CALL_MINUTES * 60 if args.call else _ENDLESS_S))
    commit = [f"--commit={args.commit}"] if args.commit else []
    end_when_asked()
    try:
        for errand in _errands(args):
            deadline = Deadline(errand.minutes * 60)
            asked = _asked(args, deadline, errand)
            stages = _stages(errand, asked)
            if args.list:
                sys.stdout.writelines(f"{stage}\n" for stage in stages)
                continue
            for beside in _side_by_side(errand, stages):
                conductor.run(beside, [*asked.options, *commit], deadline)
    except Interrupted as exc:
        sys.stderr.write(f"python -m tests.gpu: {exc}\n")
        conductor.print_table()
        return 128 + exc.number
    conductor.print_table()
    return 0 if conductor.met else 1


def _side_by_side(errand: Errand, stages: list[str]) -> list[list[str]]:
    """Say which stages run at the same time: of a part that only checks all, on many cores."""
    num_cores = len(os.sched_getaffinity(0))
    if errand.part != "correctness" or num_cores < _MANY_CORES:
        return [[stage] for stage in stages]
    return [stages]


def _errands(args: argparse.Namespace) -> list[Errand]:
    """List what a call consists of, or the parts that are asked for."""
    if args.call is None:
        return [
            Errand(
                part=part,
                minutes=args.minutes or _MINUTES[part],
                models=tuple(args.model or ()),
                workloads=tuple(args.workload or ()),
            )
            for part in args.part or PARTS
        ]
    return list(CALLS[args.call])


def _stages(errand: Errand, asked: Asked) -> list[str]:
    """List the stages of an errand; one whose workload does not exist yet is left out."""
    stages = [f"{errand.part}:{name}" for name in errand.names] or list_stages(errand.part, asked)
    missing = [stage for stage in stages if not is_known(stage)]
    for stage in missing:
        sys.stderr.write(f"{stage} asks for a workload that there is not yet\n")
    return [stage for stage in stages if stage not in missing]


def _asked(args: argparse.Namespace, deadline: Deadline, errand: Errand | None = None) -> Asked:
    return Asked(
        device=args.device,
        deadline=deadline,
        quick=args.quick,
        fp8=args.fp8,
        models=tuple(args.model or ()) if errand is None else errand.models,
        workloads=tuple(args.workload or ()) if errand is None else errand.workloads,
        eager=args.eager,
        out=args.out,
    )


if __name__ == "__main__":
    sys.exit(main())
