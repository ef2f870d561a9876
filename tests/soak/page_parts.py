"""The parts of `soak-pages`: pages over a large store, and who watches beside who streams."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from scheduler.bench.report import Figure, at_least, at_most
from tests.soak.live_gateway import percentile
from tests.soak.pages_at_scale import (
    READS,
    WALKS,
    Browser,
    PageTimes,
    full_server,
    page_times,
    portal_browser,
)
from tests.soak.pages_store import Size
from tests.soak.watchers import watch_beside_streams

Part = tuple[dict[str, Figure], dict[str, Any]]

_ASKED: Final = 100
_LARGEST_KB: Final = 100.0
_SLOWEST_MS: Final = 50.0
_WATCHERS, _ROUNDS, _SLICE_S = 200, 6, 10.0


def pages_at_scale(directory: Path, scale: float = 1.0, least_asked: int = 5) -> Part:
    """Ask for every page over 10,000 tenants, 1 M ledger rows and 5 M sums of hours."""
    return uvloop.run(_pages(directory, scale, least_asked))


async def _pages(directory: Path, scale: float, least_asked: int) -> Part:
    size = Size().scaled(scale)
    flags = ("--engine", "simulated", "--engine-profile", "instant")
    async with full_server(directory, size, *flags, **READS) as (server, filled_s):
        num_asked = max(least_asked, round(_ASKED * scale))
        with closing(Browser(server)) as browser, closing(portal_browser(server)) as portal:
            pages = page_times(browser, portal, size, num_asked)
            walks = {name: browser.times(f"/admin/{name.replace('-', '/')}", 3) for name in WALKS}
    p95_ms = {name: 1000 * percentile(page.took_s, 0.95) for name, page in pages.items()}
    slowest = max(p95_ms, key=lambda name: p95_ms[name])
    figures = {
        "pages_tenants": at_least(size.tenants, 10_000, "tenants"),
        "pages_ledger_rows": at_least(size.ledger_rows, 1_000_000, "rows"),
        "pages_sums": at_least(size.sums, 5_000_000, "rows"),
        "pages": Figure(len(pages), "pages"),
        "pages_not_answered": at_most(
            sum(page.status != 200 for page in pages.values()), 0, "pages"
        ),
        "pages_slowest_p95_ms": at_most(p95_ms[slowest], _SLOWEST_MS, "ms"),
        "pages_over_50_ms": at_most(sum(ms > _SLOWEST_MS for ms in p95_ms.values()), 0, "pages"),
        "pages_largest_kb": at_most(
            max(page.size_bytes for page in pages.values()) / 1000, _LARGEST_KB, "KB"
        ),
        "pages_audit_walk_ms": Figure(1000 * median(walks["audit-chain"].took_s), "ms"),
    }
    return figures, {
        "filled_s": filled_s,
        "size": asdict(size),
        "slowest": slowest,
        "pages": {name: _shown(page) for name, page in (pages | walks).items()},
    }


def _shown(page: PageTimes) -> dict[str, Any]:
    return {
        "path": page.path,
        "status": page.status,
        "size_bytes": page.size_bytes,
        "cpu_ms": round(page.cpu_ms, 2),
        "p50_ms": round(1000 * percentile(page.took_s, 0.5), 2),
        "p95_ms": round(1000 * percentile(page.took_s, 0.95), 2),
        "max_ms": round(1000 * max(page.took_s), 2),
    }


def watchers(directory: Path, scale: float = 1.0) -> Part:
    """Follow the live stream from 200 browsers, beside streams of tokens."""
    return uvloop.run(_watchers(directory, scale))


async def _watchers(directory: Path, scale: float) -> Part:
    size = Size().scaled(0.0)
    flags = ("--engine", "simulated", "--engine-profile", "cpu-demo")
    async with full_server(directory, size, *flags) as (server, _):
        browser = Browser(server)
        browser.close()  # what is used of it is its session
        seen = await watch_beside_streams(
            server,
            browser,
            watchers=max(1, round(_WATCHERS * scale)),
            rounds=max(2, round(_ROUNDS * scale)),
            slice_s=max(3.0, _SLICE_S * scale),
        )
    share = median(seen.watched_share) - median(seen.idle_share)
    ratio = percentile(seen.beside_s, 0.99) / percentile(seen.alone_s, 0.99)
    figures = {
        "watchers": at_least(seen.watchers, _WATCHERS, "clients"),
        "watchers_snapshots": Figure(seen.snapshots, "snapshots"),
        "watchers_core_share": at_most(share, 0.01, "share"),
        "watchers_token_gap_p99_ratio": at_most(ratio, 1.05, "ratio"),
    }
    gaps_ms = {
        name: {q: 1000 * percentile(gaps, at) for q, at in (("p50", 0.5), ("p99", 0.99))}
        | {"count": len(gaps)}
        for name, gaps in (("alone", seen.alone_s), ("beside", seen.beside_s))
    }
    shares = {"idle_share": seen.idle_share, "watched_share": seen.watched_share}
    return figures, {"gaps_ms": gaps_ms} | shares


PARTS: Final = (pages_at_scale, watchers)
