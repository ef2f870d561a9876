"""Reads traces of real workloads; the format is told by the content, not by the name.

- Azure's CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`, one nameless tenant.
- ServeGen's CSV: `t_s,client,input_tokens,output_tokens`, a client is a tenant.
- Lengths alone, as of ShareGPT or arXiv: `num_prefill_tokens,num_decode_tokens,…`; arrivals are
  Poisson at one request a second, so that a load has to be chosen.
- Mooncake's JSON lines: `timestamp` in ms, `hash_ids` of 512-token blocks: equal ids are equal
  content. Whoever shares the first block that not everybody shares is a tenant, and all share one
  cache.
- ServeGen's day: one JSON object, see `scheduler.simulator.servegen`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.simulator.errors import SimulationError
from scheduler.simulator.servegen import sample_day
from scheduler.simulator.workload import Arrival, Workload

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SERVEGEN = ("t_s", "client", "input_tokens", "output_tokens")
_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")


def read_trace(path: Path, *, seed: int = 0, limit: int | None = None) -> Workload:
    """Read a trace, of its first `limit` requests; `seed` is for what a trace leaves open.

    Raises: `SimulationError`: no file, no known format, or a row that does not read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            head = file.readline()
    except (OSError, UnicodeDecodeError) as exc:
        raise SimulationError(f"{path}: {exc}") from exc
    try:
        arrivals, has_times = _read(path, head.strip(), seed, limit)
    except (ValueError, KeyError, TypeError, IndexError) as exc:
        raise SimulationError(f"{path}: a row does not read: {exc!r}") from exc
    if not arrivals:
        raise SimulationError(f"{path}: no requests in it")
    arrivals.sort(key=lambda arrival: arrival.at_s)
    workload = Workload(
        name=path.stem,
        arrivals=arrivals,
        duration_s=max(arrivals[-1].at_s, 1e-9),
        has_times=has_times,
    )
    return workload if limit is None else workload.first(limit)


def _read(path: Path, head: str, seed: int, limit: int | None) -> tuple[list[Arrival], bool]:
    columns = tuple(head.split(","))
    if columns == _AZURE:
        return list(_azure(_rows(path, limit))), True
    if columns == _SERVEGEN:
        return list(_servegen(_rows(path, limit))), True
    if columns[:2] == _LENGTHS:
        return list(_lengths(_rows(path, limit), seed)), False
    if head.startswith("{"):
        first = _first_object(path, head)
        if "hash_ids" in first:
            return _mooncake(path, limit), True
        if "clients" in first and "quantile_levels" in first:
            return sample_day(first, seed=seed, limit=limit), True
    raise SimulationError(
        f"{path}: not a trace that is known: a CSV with the columns {','.join(_AZURE)}, "
        f"{','.join(_SERVEGEN)} or {','.join(_LENGTHS)}, JSON lines with hash_ids, "
        "or a ServeGen day"
    )


def _rows(path: Path, limit: int | None) -> Iterator[Mapping[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        for index, row in enumerate(csv.DictReader(file)):
            if index == limit:
                return
            yield row


def _azure(rows: Iterable[Mapping[str, str]]) -> Iterator[Arrival]:
    start: datetime | None = None
    for row in rows:
        # Its seconds have seven digits, of which datetime takes six.
        when = datetime.fromisoformat(row["TIMESTAMP"][:26])
        start = start or when
        yield _arrival(
            (when - start).total_seconds(), "all", row["ContextTokens"], row["GeneratedTokens"]
        )


def _servegen(rows: Iterable[Mapping[str, str]]) -> Iterator[Arrival]:
    for row in rows:
        yield _arrival(float(row["t_s"]), row["client"], row["input_tokens"], row["output_tokens"])


def _lengths(rows: Iterable[Mapping[str, str]], seed: int) -> Iterator[Arrival]:
    draw = np.random.default_rng(seed)
    at_s = 0.0
    for row in rows:
        at_s += float(draw.exponential())
        yield _arrival(at_s, "all", row["num_prefill_tokens"], row["num_decode_tokens"])


def _arrival(at_s: float, tenant_id: str, prompt: str, output: str) -> Arrival:
    """Make an arrival; whatever draws no token at all is taken to draw one."""
    return Arrival(
        at_s=at_s,
        tenant_id=tenant_id,
        num_prompt_tokens=max(1, int(prompt)),
        num_output_tokens=max(1, int(output)),
    )


def _first_object(path: Path, head: str) -> Mapping[str, Any]:
    try:
        document = json.loads(head)
    except json.JSONDecodeError:
        document = json.loads(path.read_text("utf-8"))
    return document if isinstance(document, dict) else {}


def _mooncake(path: Path, limit: int | None) -> list[Arrival]:
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for _, line in zip(range(limit or 1 << 62), file, strict=False)]
    roots = {row["hash_ids"][0] for row in rows}
    # A system prompt that everybody shares tells nobody apart.
    depth = 1 if len(roots) == 1 else 0
    return [
        Arrival(
            at_s=row["timestamp"] / 1000,
            tenant_id=f"prefix-{row['hash_ids'][min(depth, len(row['hash_ids']) - 1)]}",
            num_prompt_tokens=max(1, int(row["input_length"])),
            num_output_tokens=max(1, int(row["output_length"])),
            block_ids=tuple(row["hash_ids"]),
            salt=b"mooncake",
        )
        for row in rows
    ]
