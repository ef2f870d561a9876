"""The parts of `soak-telling`: whole traces without what was sent, and a receiver that hangs."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.bench.latency import latencies_s
from gateway.bench.load import request_of
from gateway.bench.subjects import Subject
from scheduler.bench.report import Figure, at_least, at_most
from tests.live_server import Server, start_server
from tests.mixed_requests import CANARY
from tests.soak.live_gateway import percentile
from tests.told_server import told_of
from tests.trace_receiver import attributes, faults_of, receiving

Part = tuple[dict[str, Figure], dict[str, Any]]

_RATE_RPS: Final = 30.0
_SLICE_S: Final = 10.0
_PATH: Final = "/v1/chat/completions"


def mixed_requests(directory: Path, scale: float = 1.0) -> Part:
    """Send 1,000 requests of every kind, marked in every field, and look through what was told."""
    with receiving() as receiver:
        told = told_of(directory / "data", receiver, max(20, int(1000 * scale)), 20)
    traces = receiver.traces()
    faults = Counter(fault for trace in traces.values() for fault in faults_of(trace))
    heard = [b"".join(receiver.raw).decode("utf-8", "replace"), told.log, told.metrics]
    figures = {
        "telling_requests": at_least(len(told.sender.statuses), 1000 * scale, "requests"),
        "telling_traces_missing": at_most(
            max(0, len(told.sender.statuses) - len(traces)), 0, "traces"
        ),
        "telling_trace_faults": at_most(faults.total(), 0, "faults"),
        "telling_canary_hits": at_most(
            sum(text.lower().count(CANARY.lower()) for text in heard), 0, "hits"
        ),
        "telling_preempted": at_least(_num_preempted(traces), 1, "requests"),
        "telling_spans_per_trace": Figure(len(receiver.spans) / max(1, len(traces)), "spans"),
    }
    samples = {"statuses": dict(Counter(told.sender.statuses)), "faults": dict(faults)}
    return figures, {"mixed_requests": samples}


def _num_preempted(traces: Mapping[bytes, Sequence[Span]]) -> int:
    return sum(
        any(attributes(span).get("sluice.preemptions") for span in trace)
        for trace in traces.values()
    )


def receiver_hangs(directory: Path, scale: float = 1.0) -> Part:
    """Send every trace into a hole for five minutes, beside a server that sends none."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as hole:
        hanging = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hole.getsockname()[1]}",
            "SLUICE_TRACE_SHARE": "1",
        }
        servers = {
            name: _served(stack, directory / name, env)
            for name, env in (("none", {}), ("hole", hanging))
        }
        taken_s: dict[str, list[float]] = {name: [] for name in servers}
        rss_mib: list[float] = []
        for _ in range(max(2, int(300 / _SLICE_S * scale))):
            slices = asyncio.run(_side_by_side(servers))
            for name, slice_s in zip(servers, slices, strict=True):
                taken_s[name] += slice_s
            rss_mib.append(_rss_mib(servers["hole"].pid))
    p99_ms = {name: percentile(times, 0.99) * 1000 for name, times in taken_s.items()}
    # After a fifth of the time the queue is full.
    growth = rss_mib[-1] - rss_mib[len(rss_mib) // 5]
    figures = {
        "hung_receiver_p99_added_ms": at_most(p99_ms["hole"] - p99_ms["none"], 1.0, "ms"),
        "hung_receiver_rss_growth_mib": at_most(growth, 8.0, "MiB"),
    }
    return figures, {"receiver_hangs": {"p99_ms": p99_ms, "rss_mib": rss_mib}}


def _served(stack: ExitStack, directory: Path, env: dict[str, str]) -> Subject:
    flags = ("--engine", "simulated", "--engine-profile", "instant")
    server: Server = start_server(directory, *flags, SLUICE_LOG_REQUESTS="false", **env)
    stack.callback(server.stop)
    port = int(server.api.split(":")[2].split("/")[0])
    headers = {"authorization": f"Bearer {server.key}"}
    return Subject(directory.name, server.process.pid, port, _PATH, _PATH, headers)


async def _side_by_side(servers: dict[str, Subject]) -> list[list[float]]:
    return [
        list(
            await latencies_s(
                subject,
                request_of(subject, num_tokens=1, streams=False),
                rate_rps=_RATE_RPS,
                for_s=_SLICE_S / 2,
            )
        )
        for subject in servers.values()
    ]


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


PARTS: Final = (mixed_requests, receiver_hangs)
