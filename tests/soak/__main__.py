"""`make soak`: run the promises at full size and write `docs/benchmarks/soak-*.json`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from scheduler.bench.report import BENCHMARKS_DIR, Figure, at_least, at_most, update_report
from tests.live_server import TREE, start_server
from tests.passable import passable_directory
from tests.soak import (
    batch_parts,
    chaos,
    decode_parts,
    fairness,
    fault_parts,
    form_parts,
    guard_parts,
    harvest_parts,
    model_parts,
    overload,
    page_parts,
    quota_parts,
    random_histories,
    replica_shares,
    restore_parts,
    streams,
    telling_parts,
    throughput,
    upgrades,
    wall_parts,
)
from tests.soak.live_gateway import percentile

ROOT = Path(__file__).parent.parent.parent
Part = tuple[dict[str, Figure], dict[str, Any]]


def start(directory: Path) -> Part:
    """Time a warm start: stores initialised, demo model, from the command to ready."""
    start_server(directory / "data").stop()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        server = start_server(directory / "data")
        seconds.append(time.perf_counter() - began)
        server.stop()
    return {"warm_start_s": at_most(median(seconds), 5, "s")}, {"warm_start_s": seconds}


def sdk_streams(directory: Path) -> Part:
    """Run 200 concurrent SDK streams, six rounds."""
    result = uvloop.run(streams.concurrent_streams(directory / "data", num_streams=200, rounds=6))
    growth = result.rss_mib[-1] / result.rss_mib[1]
    figures = {
        "streams": Figure(200 * 6, "streams"),
        "streams_wrong": at_most(len(result.wrong), 0, "streams"),
        "streams_loop_lag_p99_ms": at_most(streams.loop_lag_p99_ms(result), 50, "ms"),
        "rss_growth_after_round_2": at_most(growth, 1.02, "ratio"),
    }
    samples = {
        "wrong": result.wrong[:20],
        "rss_mib": result.rss_mib,
        "wall_s": result.wall_s,
        "loop_lag_ms": {
            name: percentile(result.lag_s, q) * 1000
            for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
    }
    return figures, samples


def disconnects(directory: Path) -> Part:
    """Drop 1,000 clients, half of them streaming, one at a time and in groups."""
    single = uvloop.run(streams.disconnects(directory / "a", num_each=250, together=1))
    grouped = uvloop.run(streams.disconnects(directory / "b", num_each=250, together=25))
    figures, samples = {}, {}
    for mode in ("streaming", "plain"):
        times = [t for r in (single, grouped) for t in getattr(r, f"{mode}_s")]
        figures[f"disconnect_{mode}_max_ms"] = at_most(max(times) * 1000, 250, "ms")
        samples[f"disconnect_{mode}_ms"] = {
            "count": len(times),
            "p50": median(times) * 1000,
            "p99": percentile(times, 0.99) * 1000,
        }
    return figures, samples


def http_ratio(directory: Path) -> Part:
    """Compare tokens/s over HTTP with the engine alone."""
    rounds = uvloop.run(
        throughput.over_http(directory / "data", num_requests=200, num_output_tokens=64, rounds=5)
    )
    ratio = median(r["http_tokens_per_s"] / r["alone_tokens_per_s"] for r in rounds)
    figures = {
        "http_over_engine_alone_ratio": at_least(ratio, 0.7, "ratio"),
        "http_tokens_per_s": Figure(median(r["http_tokens_per_s"] for r in rounds), "tokens/s"),
        "alone_tokens_per_s": Figure(median(r["alone_tokens_per_s"] for r in rounds), "tokens/s"),
    }
    return figures, {"throughput": rounds}


def replay(directory: Path) -> Part:
    """Replay 200 requests of the trace at their own times, of 1,024 tokens at most."""
    server = start_server(directory / "data")
    command = [sys.executable, ROOT / "examples/replay_trace.py", "--context", "1024", "--json"]
    done = subprocess.run(
        [*command, "--base-url", server.api, "--key", server.key, "--requests", "200"],
        stdout=subprocess.PIPE,
        text=True,
    )
    server.stop()
    result = json.loads(done.stdout)
    figures = {
        "replay_answered": at_least(result["answered"], 200, "requests"),
        "replay_ttft_p50_ms": Figure(result["ttft_s"]["p50"] * 1000, "ms"),
        "replay_ttft_p99_ms": Figure(result["ttft_s"]["p99"] * 1000, "ms"),
        "replay_tpot_p50_ms": Figure(result["tpot_s"]["p50"] * 1000, "ms"),
    }
    return figures, {"replay": result}


def tenant_shares(directory: Path) -> Part:
    """Flood the demo model from two tenants of weights 1 and 3 for a minute."""
    server = start_server(directory / "data", **fairness.ENGINE)
    shares = fairness.flood(server, min_requests=1000, min_s=60)
    server.stop()
    tokens_per_s = sum(shares.served.values()) / shares.seconds
    figures = {
        "weighted_service_globex_over_acme": Figure(shares.ratio, "ratio"),
        "weighted_service_error": at_most(shares.error, 0.05, "ratio"),
        "least_waiting": at_least(min(shares.least_waiting.values()), 1, "requests"),
        "weighted_tokens_per_s": Figure(tokens_per_s, "weighted tokens/s"),
    }
    return figures, {"tenant_shares": asdict(shares)}


def five_times_capacity(directory: Path) -> Part:
    """Ask a server for five times what it can do, for five minutes."""
    server = start_server(directory / "data", *overload.ENGINE, **overload.SETTINGS)
    result = overload.press(server, near_s=60, over_s=300)
    server.stop()
    share = result.goodput_rps / result.peak_goodput_rps
    figures = {
        "overload_goodput_share_of_peak": at_least(share, 0.9, "share"),
        "overload_refusal_p99_ms": at_most(result.refusal_p99_s * 1000, 50, "ms"),
        "overload_refused_without_retry": at_most(result.num_refused_without_retry, 0, "requests"),
        "overload_failed": at_most(result.num_failed, 0, "requests"),
        "overload_memory_spread": at_most(result.rss_spread, 1.1, "ratio"),
        "overload_priority_in_time_share": at_least(result.priority_in_time, 0.99, "share"),
        "overload_factor": Figure(result.sent_rps / result.capacity_rps, "ratio"),
    }
    return figures, {"overload": asdict(result)}


# Take a second argument: the share of their full size that is run. Their figures say so.
GUARDS: tuple[Callable[[Path, float], Part], ...] = (
    guard_parts.guards_fuzz,
    guard_parts.rolling_restart,
    guard_parts.slow_readers,
    guard_parts.half_open,
)
QUOTA: tuple[Callable[[Path, float], Part], ...] = (
    quota_parts.gateways_killed,
    quota_parts.clients_killed,
    quota_parts.cancellations,
    quota_parts.exactly_once,
    fault_parts.redis_faults,
    fault_parts.postgres_away,
    fault_parts.gateway_frozen,
    fault_parts.revocation,
    fault_parts.stores_between,
)
BATCH: tuple[Callable[[Path, float], Part], ...] = (
    batch_parts.batch_fenced,
    batch_parts.batch_lost,
    batch_parts.batch_scale,
)
RESTORE: tuple[Callable[[Path, float], Part], ...] = (restore_parts.restore_drill,)
WALLS = wall_parts.PARTS
TELLING = telling_parts.PARTS
CHAOS = (chaos.chaos,)
UPGRADES = (upgrades.upgrade_beside,)
FORMS = form_parts.PARTS
PAGES = page_parts.PARTS
SCALED = (*GUARDS, *QUOTA, *BATCH, *TELLING, *RESTORE, *FORMS, *PAGES, *UPGRADES, *CHAOS)
REPORTS: dict[str, tuple[Callable[..., Part], ...]] = {
    "soak-streams": (start, sdk_streams, disconnects, http_ratio, replay),
    "soak-fairness": (tenant_shares, decode_parts.decode_shares, decode_parts.light_stream),
    "soak-replicas": (replica_shares.replica_shares,),
    "soak-models": (model_parts.beside_models,),
    "soak-overload": (five_times_capacity,),
    "soak-histories": (random_histories.random_histories,),
    "soak-guards": GUARDS,
    "soak-quota": QUOTA,
    "soak-walls": WALLS,
    "soak-telling": TELLING,
    "soak-chaos": CHAOS,
    "soak-restore": RESTORE,
    "soak-upgrades": UPGRADES,
    "soak-forms": FORMS,
    "soak-pages": PAGES,
    "soak-batch": (*BATCH, harvest_parts.batch_harvest),
}
PARTS = {part.__name__: part for parts in REPORTS.values() for part in parts}
# A report's name without "soak-" stands for all of its parts.
GROUPS = {report.removeprefix("soak-"): report for report in REPORTS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--part", choices=[*GROUPS, *PARTS], action="append", help="default: all")
    parser.add_argument("--out", type=Path, default=BENCHMARKS_DIR)
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of the full size of those parts that have one",
    )
    args = parser.parse_args()
    asked = set(args.part or GROUPS)
    all_met = True
    for group, report in GROUPS.items():
        parts = REPORTS[report]
        chosen = [part for part in parts if not asked.isdisjoint((group, part.__name__))]
        if chosen:
            all_met &= _run(report, chosen, args.out, args.scale)
    return 0 if all_met else 1


def _run(report: str, parts: Sequence[Callable[..., Part]], out: Path, scale: float) -> bool:
    """Run the parts of a report, write each into it, and tell whether every goal was met."""
    all_met = True
    for part in parts:
        print(f"{part.__name__} …", file=sys.stderr, flush=True)
        with passable_directory(on_disk=True) as directory:
            sized = (directory, scale) if part in SCALED else (directory,)
            figures, samples = part(*sized)
        for key, figure in figures.items():
            verdict = {None: " ", True: "✓", False: "✗"}[figure.met]
            print(f"  {verdict} {key}: {figure.value:.4g} {figure.unit} {figure.goal or ''}")
        all_met &= all(figure.met is not False for figure in figures.values())
        path = update_report(
            report, part.__name__, figures, samples, directory=out, commit=_commit_of(TREE)
        )
        print(path)
    return all_met


def _commit_of(tree: str | None) -> str | None:
    """Name the commit of another checkout that is measured; None is this one's."""
    if tree is None:
        return None
    git = ["git", "-C", tree, "rev-parse", "HEAD"]
    return subprocess.run(git, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
