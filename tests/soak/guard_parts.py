"""The parts of `soak-guards`: hostile bytes, hostile clients and rolling restarts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from scheduler.bench.report import Figure, at_least, at_most
from tests.live_server import start_server
from tests.soak import guards, hostile_clients, rolling
from tests.soak.live_gateway import percentile
from tests.soak.probes import Probed

Part = tuple[dict[str, Figure], dict[str, Any]]


def guards_fuzz(directory: Path, scale: float = 1.0) -> Part:
    """Fuzz a server beside a victim whose greedy text must not change."""
    server = start_server(directory / "data")
    try:
        fuzzed = guards.fuzz_beside_victim(server, count=_scaled(200_000, scale), seed=1)
        result = uvloop.run(fuzzed)
    finally:
        server.stop()
    tally = result.tally
    figures = {
        "fuzzed_requests": at_least(tally.sent, 200_000, "requests"),
        "fuzz_engine_deaths": at_most(result.deaths, 0, "deaths"),
        "fuzz_answers_500_and_up": at_most(tally.server_errors, 0, "answers"),
        "fuzz_failures": at_most(tally.failures.total(), 0, "requests"),
        "fuzz_victim_wrong": at_most(len(result.wrong), 0, "answers"),
        "fuzz_victim_answers": Figure(result.victim_answers, "answers"),
        "fuzz_shared_samples_ratio": Figure(
            result.shared_samples / max(1, result.samples), "ratio"
        ),
        "fuzz_slowest_answer_s": Figure(tally.slowest_s, "s"),
    }
    rss_mib = {"first": result.rss_mib[0], "last": result.rss_mib[-1], "max": max(result.rss_mib)}
    samples = {"tally": tally.to_dict(), "victim_wrong": result.wrong[:20], "rss_mib": rss_mib}
    return figures, {"guards_fuzz": samples}


def rolling_restart(directory: Path, scale: float = 1.0) -> Part:
    """Restart two servers in turn, twenty times each, under half load through a balancer."""
    restarts = _scaled(20, scale)
    result = uvloop.run(rolling.rolling_restart(directory, restarts=restarts))
    codes = [code for kills in result.kills for code in kills.exit_codes]
    figures = {
        "rolling_restarts": at_least(len(codes), 40, "restarts"),
        "rolling_requests": Figure(result.requests, "requests"),
        "rolling_failed": at_most(result.failed, 0, "requests"),
        "rolling_streams_without_end": at_most(result.unterminated, 0, "streams"),
        "rolling_bad_exits": at_most(sum(code != 0 for code in codes), 0, "exits"),
        "rolling_retries": Figure(result.balanced.retries, "requests"),
    }
    samples = asdict(result) | {"seconds": _summary(result.seconds), "kills": []}
    samples["statuses"] = dict(result.statuses)
    samples["balanced"] = asdict(result.balanced) | {"answered": dict(result.balanced.answered)}
    for kills in result.kills:
        samples["kills"].append({"ending_s": kills.ending_s, "back_s": kills.back_s})
    return figures, {"rolling_restart": samples}


def slow_readers(directory: Path, scale: float = 1.0) -> Part:
    """Stream to 500 clients that never read, beside another tenant's probes."""
    clients = _scaled(500, scale)
    result = uvloop.run(hostile_clients.slow_readers(directory, num_clients=clients, phase_s=30))
    back_s = hostile_clients.GIVE_UP_S if result.back_s is None else result.back_s
    phases = [result.idle, result.beside_readers, result.beside_sleepers]
    ratio = _p99_s(result.beside_sleepers) / _p99_s(result.beside_readers)
    figures = {
        "slow_readers": at_least(clients, 500, "clients"),
        "slow_readers_peak_over_baseline_ratio": at_least(
            result.peak_blocks / max(1, result.baseline_blocks), 2, "ratio"
        ),
        "slow_readers_kv_back_s": at_most(back_s, 35, "s"),
        "slow_readers_other_ttft_p99_ratio": at_most(ratio, 1.1, "ratio"),
        "slow_readers_other_failed": at_most(sum(len(p.failures) for p in phases), 0, "requests"),
    }
    names = ("idle", "beside_readers", "beside_sleepers")
    samples: dict[str, Any] = {
        name: _probed(phase) for name, phase in zip(names, phases, strict=True)
    }
    samples["blocks"] = {"baseline": result.baseline_blocks, "peak": result.peak_blocks}
    samples["back_s"] = result.back_s
    return figures, {"slow_readers": samples}


def half_open(directory: Path, scale: float = 1.0) -> Part:
    """Hold 500 half headers and 500 half bodies for 25 s, beside another tenant's probes."""
    each = _scaled(500, scale)
    result = uvloop.run(hostile_clients.half_open(directory, num_each=each, phase_s=25))
    ratio = _p99_s(result.beside) / _p99_s(result.idle)
    failed = len(result.idle.failures) + len(result.beside.failures)
    figures = {
        "half_open_connections": at_least(result.opened, 1000, "connections"),
        "half_open_other_failed": at_most(failed, 0, "requests"),
        "half_open_other_ttft_p99_ratio": at_most(ratio, 1.1, "ratio"),
        "half_open_headers_left": at_most(result.left["headers"], 0, "connections"),
        "half_open_bodies_left": at_most(result.left["bodies"], 0, "connections"),
    }
    samples = {"idle": _probed(result.idle), "beside": _probed(result.beside)}
    return figures, {"half_open": samples}


def _scaled(size: int, scale: float) -> int:
    return max(1, round(size * scale))


def _p99_s(probed: Probed) -> float:
    return percentile(probed.ttft_s, 0.99)


def _probed(probed: Probed) -> dict[str, Any]:
    return {"ttft_s": _summary(probed.ttft_s), "failures": probed.failures[:20]}


def _summary(values: list[float]) -> dict[str, float]:
    quantiles = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {"count": len(values)} | {name: percentile(values, q) for name, q in quantiles}
