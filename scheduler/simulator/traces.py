"""Reads traces of real workloads; the format is told by the content, not by the name.

- Our own CSV, see `scheduler.simulator.own_format`.
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
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.simulator import own_format
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.fields import Fields, csv_rows
from scheduler.simulator.servegen import sample_day
from scheduler.simulator.workload import FIRST_BLOCK_TOKEN, Arrival, Workload

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SERVEGEN = ("t_s", "client", "input_tokens", "output_tokens")
_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
# Blocks are told apart by their tokens, which are 31 bits.
_MAX_BLOCK_ID = (1 << 31) - FIRST_BLOCK_TOKEN
# What a file may raise beyond what its fields say: it is no CSV, or not the JSON that it seems.
_UNREADABLE = (
    csv.Error,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def read_trace(path: Path, *, seed: int = 0, limit: int | None = None) -> Workload:
    """Read a trace, of its first `limit` requests; `seed` is for what a trace leaves open.

    Raises: `SimulationError`: no file, no known format, or a row that does not read, which is
    named by its line and column.
    """
    try:
        arrivals, has_times = _read(path, seed, limit)
    except (OSError, UnicodeDecodeError) as exc:
        raise SimulationError(f"{path}: {exc}") from exc
    except _UNREADABLE as exc:
        raise SimulationError(f"{path}: it does not read: {exc!r}") from exc
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


def _read(path: Path, seed: int, limit: int | None) -> tuple[list[Arrival], bool]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        head = file.readline().strip()
    columns = tuple(column.strip() for column in next(csv.reader([head]), []))
    rows = csv_rows(path, columns, limit)
    if columns == _AZURE:
        return _azure(rows), True
    if columns == _SERVEGEN:
        return list(_servegen(rows)), True
    if columns[:2] == _LENGTHS:
        return list(_lengths(rows, seed)), False
    if set(own_format.NEEDED) <= set(columns):
        own_format.check_columns(path, columns)
        return list(own_format.read_rows(rows)), True
    if head.startswith("{"):
        first = _first_object(path, head)
        if "hash_ids" in first:
            return _mooncake(path, limit), True
        if "clients" in first and "quantile_levels" in first:
            try:
                return sample_day(first, seed=seed, limit=limit), True
            except SimulationError as exc:
                raise SimulationError(f"{path}: {exc}") from exc
    raise SimulationError(
        f"{path}: not a trace that is known: a CSV with at least {','.join(own_format.NEEDED)}, "
        f"with the columns {','.join(_AZURE)}, {','.join(_SERVEGEN)} or {','.join(_LENGTHS)}, "
        "JSON lines with hash_ids, or a ServeGen day"
    )


def _azure(rows: Iterable[Fields]) -> list[Arrival]:
    whens = [(row.moment("TIMESTAMP"), row) for row in rows]
    start = min((when for when, _ in whens), default=None)
    return [
        _arrival((when - start).total_seconds(), "all", row, "ContextTokens", "GeneratedTokens")
        for when, row in whens
        if start is not None
    ]


def _servegen(rows: Iterable[Fields]) -> Iterator[Arrival]:
    for row in rows:
        yield _arrival(row.time_s("t_s"), row.text("client"), row, "input_tokens", "output_tokens")


def _lengths(rows: Iterable[Fields], seed: int) -> Iterator[Arrival]:
    draw = np.random.default_rng(seed)
    at_s = 0.0
    for row in rows:
        at_s += float(draw.exponential())
        yield _arrival(at_s, "all", row, *_LENGTHS)


def _arrival(at_s: float, tenant_id: str, row: Fields, prompt: str, output: str) -> Arrival:
    """Make an arrival; whatever draws no token at all is taken to draw one."""
    return Arrival(
        at_s=at_s,
        tenant_id=tenant_id,
        num_prompt_tokens=max(1, row.count(prompt)),
        num_output_tokens=max(1, row.count(output)),
    )


def _first_object(path: Path, head: str) -> Mapping[str, Any]:
    try:
        document = json.loads(head)
    except json.JSONDecodeError:
        document = json.loads(path.read_text("utf-8"))
    return document if isinstance(document, dict) else {}


def _mooncake(path: Path, limit: int | None) -> list[Arrival]:
    with path.open(encoding="utf-8-sig") as file:
        rows = [_json_row(path, n + 1, line) for n, line in enumerate(islice(file, limit))]
    blocks = [_block_ids(row) for row in rows]
    # A system prompt that everybody shares tells nobody apart.
    depth = 1 if len({ids[0] for ids in blocks}) == 1 else 0
    return [
        Arrival(
            at_s=row.time_s("timestamp", scale=1e-3),
            tenant_id=f"prefix-{ids[min(depth, len(ids) - 1)]}",
            num_prompt_tokens=max(1, row.count("input_length")),
            num_output_tokens=max(1, row.count("output_length")),
            block_ids=ids,
            salt=b"mooncake",
        )
        for row, ids in zip(rows, blocks, strict=True)
    ]


def _json_row(path: Path, line: int, text: str) -> Fields:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise SimulationError(f"{path}: line {line} is not a JSON object")
    return Fields(path, line, values)


def _block_ids(row: Fields) -> tuple[int, ...]:
    ids = row.values.get("hash_ids")
    if not isinstance(ids, list) or not ids:
        raise row.error("hash_ids", "is not a list of blocks")
    if not all(type(name) is int and 0 <= name < _MAX_BLOCK_ID for name in ids):
        raise row.error("hash_ids", f"has a block that is no number from 0 to {_MAX_BLOCK_ID - 1}")
    return tuple(ids)
