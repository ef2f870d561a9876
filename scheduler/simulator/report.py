"""How a person gets to read a run: plain text tables, no colours, no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MAX_TENANTS = 12
_LATENCIES = (
    ("time to first token", "ttft_s"),
    ("time per output token", "tpot_s"),
    ("longest gap", "max_gap_s"),
)


def render_run(figures: Mapping[str, Any]) -> str:
    """Lay out what `scheduler.simulator.metrics.measure` has found, with what was run on top."""
    parts = [
        _title(figures),
        table(
            ("", "p50", "p90", "p99"), [_latency_row(label, figures[k]) for label, k in _LATENCIES]
        ),
        table(("", ""), _totals(figures)),
    ]
    if len(figures["tenants"]) > 1:
        parts.append(_tenants(figures["tenants"]))
    if figures["rejected"] or figures["slo_attainment"] not in (None, 1.0):
        parts.append(_deciles(figures["prompt_length_deciles"]))
    return "\n\n".join(parts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
    lines = [header, *rows] if any(header) else list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def seconds(value: float | None) -> str:
    """Write a time as people read it."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _kept(share: float | None) -> str:
    """Write which share of promises was kept; where none was made, none was broken either."""
    return "none promised" if share is None else percent(share)


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


def _title(figures: Mapping[str, Any]) -> str:
    load = figures["load"]
    pace = "as recorded" if load is None else f"load {load:g}"
    return (
        f"{figures['trace']} under {figures['policy']}, {pace}, on {figures['machine']}: "
        f"{figures['completed']:,} of {figures['requests']:,} requests completed in "
        f"{seconds(figures['virtual_seconds'])}"
    )


def _latency_row(label: str, values: Mapping[str, float | None]) -> tuple[str, ...]:
    return (label, *(seconds(values[name]) for name in ("p50", "p90", "p99")))


def _totals(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    difference = figures["service_difference"]
    return [
        ("tokens/s, in and out", number(figures["tokens_per_s"])),
        ("goodput, requests/s", number(figures["goodput_rps"])),
        ("promises kept", _kept(figures["slo_attainment"])),
        ("refused", number(figures["rejected"])),
        *((f"  for {cause}", number(count)) for cause, count in figures["refusals"].items()),
        ("expired while waiting", number(figures["expired"])),
        ("cancelled", number(figures["cancelled"])),
        ("preemptions", number(figures["preemptions"])),
        ("prompt tokens from the cache", percent(figures["prefix_hit_share"])),
        ("Jain's index of service", number(figures["jain"])),
        ("service difference, avg", number(difference["avg"])),
        ("service difference, max", number(difference["max"])),
        ("largest drift while both wait", number(figures["interval_service_difference_max"])),
    ]


def _tenants(tenants: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            str(tenant["tenant"]),
            f"{tenant['weight']:g}",
            number(tenant["requests"]),
            number(tenant["rejected"]),
            percent(tenant["service_share"]),
            percent(tenant["entitled_share"]),
            _kept(tenant["slo_attainment"]),
            seconds(tenant["ttft_s"]["p50"]),
            seconds(tenant["ttft_s"]["p99"]),
            seconds(tenant["tpot_s"]["p50"]),
        )
        for tenant in tenants[:_MAX_TENANTS]
    ]
    header = ("tenant", "weight", "requests", "refused", "service", "entitled", "kept")
    text = table((*header, "TTFT p50", "p99", "TPOT p50"), rows)
    hidden = len(tenants) - len(rows)
    return f"{text}\nand {hidden} more with less service" if hidden else text


def _deciles(deciles: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"up to {part['max_prompt_tokens']:,}",
            number(part["requests"]),
            number(part["rejected"]),
            _kept(part["slo_attainment"]),
            seconds(part["ttft_p99_s"]),
        )
        for part in deciles
    ]
    return table(("prompt tokens", "requests", "refused", "kept", "TTFT p99"), rows)
