"""The parts of `soak-forms`: answers of random schemas, of many schemas, of hostile ones."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

import jsonschema

from scheduler.bench.report import Figure, at_least, at_most
from tests.clients.environments import HERE, python_environment
from tests.gateway.api.openai.random_schemas import draw_schemas
from tests.live_server import start_server
from tests.soak.forms import Fates, random_forms, unique_forms
from tests.soak.hostile_forms import HOSTILE, Seen, hostile_beside_streams
from tests.soak.live_gateway import percentile

Part = tuple[dict[str, Figure], dict[str, Any]]
NUM_RANDOM: Final = 500
NUM_DRAWN: Final = 500
NUM_UNIQUE: Final = 10_000
_LOOKS: Final = 20
# By then what is kept of a tenant is full.
_FULL_AFTER: Final = 5
# A victim's gaps may be so much of what they are alone, and a step longer.
_BOUND_RATIO: Final = 1.5


def random_schemas(directory: Path, scale: float = 1.0) -> Part:
    """Have 500 random schemas answered by the demo model, and validate what ends by itself."""
    number = round(NUM_RANDOM * scale)
    server = start_server(directory / "data")
    try:
        fates = asyncio.run(random_forms(server, draw_schemas(number)))
    finally:
        server.stop()
    figures = {"forms_schemas": at_least(fates.ends.total(), NUM_RANDOM, "schemas")}
    return figures | _fates_figures("forms", fates), {"random_schemas": _fates_samples(fates)}


def drawn_schemas(directory: Path, scale: float = 1.0) -> Part:
    """Have schemas answered that hypothesis-jsonschema draws, in two ways: from draft-07's
    meta-schema, and of one type with bounds that suit each other."""
    environment = python_environment("hypothesis-jsonschema")
    number = round(NUM_DRAWN * scale)
    done = environment.run(
        *("python", HERE / "programs" / "drawn_schemas.py", str(number), "1"),
        cwd=directory,
        timeout_s=3600,
        PYTHONHASHSEED="0",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    figures: dict[str, Figure] = {}
    samples: dict[str, Any] = {}
    all_fates = {}
    server = start_server(directory / "data")
    try:
        for way, schemas in json.loads(done.stdout).items():
            all_fates[way] = asyncio.run(
                random_forms(server, schemas, draft=jsonschema.Draft7Validator)
            )
    finally:
        server.stop()
    for way, fates in all_fates.items():
        figures |= _fates_figures(f"drawn_{way}", fates)
        # Of what may be endless a weak model writes until its context ends.
        figures[f"drawn_{way}_cut"] = Figure(fates.ends["length"], "answers")
        samples[f"drawn_{way}"] = _fates_samples(fates)
    totals = [fates.ends.total() for fates in all_fates.values()]
    refused = [fates.ends["400"] - fates.num_impossible for fates in all_fates.values()]
    figures["drawn_schemas"] = at_least(sum(totals), NUM_DRAWN * len(totals), "schemas")
    figures["refused_share_of_drawn"] = at_most(sum(refused) / sum(totals), 0.2, "share")
    return figures, samples


def unique_schemas(directory: Path, scale: float = 1.0) -> Part:
    """Send 10,000 schemas of which no two are alike, and watch the memory."""
    server = start_server(directory / "data")
    try:
        sent = unique_forms(server, round(NUM_UNIQUE * scale), looks=_LOOKS)
        statuses, memory_mib = asyncio.run(sent)
    finally:
        server.stop()
    growth = max(memory_mib[_FULL_AFTER:]) / memory_mib[_FULL_AFTER - 1]
    figures = {
        "unique_schemas": at_least(statuses[200], NUM_UNIQUE, "schemas"),
        "unique_schemas_failed": at_most(statuses.total() - statuses[200], 0, "schemas"),
        "unique_schemas_memory_growth_ratio": at_most(growth, 1.03, "ratio"),
        "unique_schemas_memory_mib": Figure(memory_mib[-1], "MiB"),
    }
    return figures, {"unique_schemas": {"statuses": statuses, "memory_mib": memory_mib}}


def hostile_schemas(directory: Path, scale: float = 1.0) -> Part:
    """Send what is made to take long, beside another tenant's streams."""
    server = start_server(directory / "data")
    try:
        rounds = max(1, round(5 * scale))
        seen = asyncio.run(hostile_beside_streams(server, rounds=rounds, spell_s=10 * scale))
    finally:
        server.stop()
    return _hostile_figures(seen), {"hostile_schemas": _hostile_samples(seen)}


PARTS: Final = (random_schemas, drawn_schemas, unique_schemas, hostile_schemas)


def _fates_figures(name: str, fates: Fates) -> dict[str, Figure]:
    ends = fates.ends
    refused = ends["400"] - fates.num_impossible
    return {
        f"{name}_valid": Figure(ends["stop"] - len(fates.invalid), "answers"),
        f"{name}_invalid": at_most(len(fates.invalid), 0, "answers"),
        f"{name}_cut": at_most(ends["length"], 0, "answers"),
        # Beside those of which no value is.
        f"{name}_refused_share": at_most(refused / ends.total(), 0.2, "share"),
        f"{name}_impossible_share": Figure(fates.num_impossible / ends.total(), "share"),
        f"{name}_refused_without_keyword": at_most(len(fates.unnamed), 0, "refusals"),
        f"{name}_failed": at_most(
            ends.total() - ends["stop"] - ends["length"] - ends["400"], 0, "answers"
        ),
    }


def _fates_samples(fates: Fates) -> dict[str, Any]:
    return {
        "ends": dict(fates.ends),
        "refused_by": dict(fates.named),
        "invalid": fates.invalid[:20],
        "unnamed": fates.unnamed[:20],
    }


def _hostile_figures(seen: Seen) -> dict[str, Figure]:
    statuses = Counter(status for each in seen.statuses.values() for status in each)
    refused_s = [
        took_s
        for name in HOSTILE
        for status, took_s in zip(seen.statuses[name], seen.took_s[name], strict=True)
        if status == 400
    ]
    step_s = median(seen.alone_s)
    p99_s, alone_p99_s = percentile(seen.beside_s, 0.99), percentile(seen.alone_s, 0.99)
    longest_s, alone_longest_s = max(seen.beside_s), max(seen.alone_s)
    return {
        "hostile_schemas": at_least(len(seen.statuses), len(HOSTILE), "forms"),
        "hostile_failed": at_most(statuses.total() - statuses[200] - statuses[400], 0, "answers"),
        "hostile_refused": at_least(statuses[400], 1, "answers"),
        "hostile_refusal_max_s": at_most(max(refused_s), 2.0, "s"),
        "hostile_gap_p99_ratio": at_most(
            p99_s / (_BOUND_RATIO * alone_p99_s + step_s), 1.0, "ratio"
        ),
        "hostile_gap_p99_ms": Figure(p99_s * 1000, "ms"),
        "hostile_gap_p99_alone_ms": Figure(alone_p99_s * 1000, "ms"),
        "hostile_gap_max_ms": Figure(longest_s * 1000, "ms"),
        "hostile_gap_max_alone_ms": Figure(alone_longest_s * 1000, "ms"),
        "hostile_step_ms": Figure(step_s * 1000, "ms"),
    }


def _hostile_samples(seen: Seen) -> dict[str, Any]:
    longest_ms = {
        name: sorted(round(gap_s * 1000, 2) for gap_s in gaps_s)[-20:]
        for name, gaps_s in (("alone", seen.alone_s), ("beside", seen.beside_s))
    }
    told = asdict(seen)
    return {"statuses": told["statuses"], "took_s": told["took_s"], "longest_gaps_ms": longest_ms}
