"""Runs workloads on a model, one after another; knows which there are and what the suite is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from scheduler.bench.decode_sweep import compare_peer, decode_sweep
from scheduler.bench.host_share import host_share
from scheduler.bench.long_prompt import long_prompt
from scheduler.bench.loop_lag import loop_lag
from scheduler.bench.part import Part, Row, grow
from scheduler.bench.report import Figure
from scheduler.bench.roofline import Ceilings
from scheduler.bench.sampling import sampling
from scheduler.bench.setup import DEMO, Bench, Options, open_bench, run_conditions
from scheduler.bench.step_profile import profile
from scheduler.bench.step_sweep import step_sweep
from scheduler.bench.trace import trace
from scheduler.bench.uneven import uneven
from scheduler.bench.workloads import mixed, nano, one_k_one_k, prefill, shared_prefix

# One that measures in several pieces yields its part after each; see `grow`.
Workload = Callable[[Bench], Part | Iterator[Part]]

WORKLOADS: Mapping[str, Workload] = {
    "decode-sweep": decode_sweep,
    "prefill": prefill,
    "mixed": mixed,
    "shared-prefix": shared_prefix,
    "nano": nano,
    "profile": profile,
    "step-sweep": step_sweep,
    "1k1k": one_k_one_k,
    "64k": long_prompt,
    "uneven": uneven,
    "peer": compare_peer,
    "host-share": host_share,
    "loop-lag": loop_lag,
    "trace": trace,
    "sampling": sampling,
}
# What a GPU is measured by beside the default ones.
GPU_WORKLOADS = ("1k1k", "64k", "uneven", "peer", "host-share", "loop-lag", "sampling", "trace")
DEFAULT_WORKLOADS = ("decode-sweep", "prefill", "mixed", "shared-prefix", "nano")


def measure(options: Options, workloads: Sequence[str]) -> Iterator[tuple[str, Part]]:
    """Open a model and measure workload after workload; titles say what a part measured.

    A part comes whenever there is more in it, the last time `complete`.
    """
    with open_bench(options) as bench:
        subject = f"{bench.slug} {bench.info.dtype}"
        if options.native == "off":
            subject += " torch alone"
        subject += (options.eight_bits + options.switches).replace("_", " ")
        conditions = {**run_conditions(), "compiled_operators": bench.uses_native}
        parts: list[tuple[str, Callable[[], Part | Iterator[Part]]]] = [
            ("ceilings", partial(ceilings_part, bench.ceilings, _product_name(bench)))
        ]
        parts += [(workload, partial(WORKLOADS[workload], bench)) for workload in workloads]
        for title, run in parts:
            for part in grow(run()):
                part.samples["conditions"] = conditions | {"load_average": os.getloadavg()[0]}
                yield f"{title} {subject}", part


def _product_name(bench: Bench) -> str:
    """Name the type whose products were timed."""
    in_eight_bits = bench.options.on_gpu and bench.options.weight_dtype == "fp8"
    return "fp8" if in_eight_bits else bench.dtype_name


def suite(options: Options) -> list[tuple[Options, tuple[str, ...]]]:
    """List the runs behind the figures that the documents quote for a CPU."""
    small = replace(options, shape="llama-30m", model_dir=None, dtype="float32", batches=None)
    half = replace(small, dtype="bfloat16")
    large = replace(half, shape="qwen3-0.5b", rounds=min(3, options.rounds))
    return [
        (small, (*DEFAULT_WORKLOADS, "profile")),
        (replace(small, native="off"), ("decode-sweep",)),
        (half, ("decode-sweep",)),
        (replace(half, native="off"), ("decode-sweep",)),
        (replace(large, batches=(1, 8)), ("decode-sweep",)),
        (replace(large, peers=False), ("profile",)),
        (replace(small, shape=DEMO, dtype=None, peers=False), ("step-sweep",)),
    ]


def as_json(parts: Mapping[str, Part]) -> str:
    """Give all figures and samples as one JSON document on one line."""
    figures: dict[str, Figure] = {}
    for part in parts.values():
        figures |= part.figures
    document: dict[str, Any] = {
        "figures": {key: asdict(figure) for key, figure in figures.items()},
        "samples": {title: part.samples for title, part in parts.items()},
    }
    return json.dumps(document)


def ceilings_part(ceilings: Ceilings, dtype_name: str) -> Part:
    """State the ceilings that the shares are of."""
    copy, product = ceilings.copy_bytes_per_s / 1e9, ceilings.flop_per_s / 1e9
    return Part(
        {
            "copy_gb_per_s": Figure(copy, "GB/s"),
            f"matmul_{dtype_name}_gflop_per_s": Figure(product, "GFLOP/s"),
        },
        {},
        [Row(f"copy {copy:.1f} GB/s, matmul {product:,.0f} GFLOP/s", None)],
    )
