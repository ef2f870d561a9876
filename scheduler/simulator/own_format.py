"""Reads traces of Sluice's own format: a CSV file that says who asks for what under which promise.

Four columns are needed, the others may be left out or empty. Times are from the start of the
trace, in seconds; promises are in milliseconds. Tenants of one `organisation` share one share;
organisations weigh 1, as does a tenant without. Requests of one tenant with the same `prefix_id`
begin with the same tokens, as many as both have `prefix_tokens`. A request is cancelled at
`cancel_at_s`, or once its caller has `cancel_after_tokens` tokens of the answer, if that is first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scheduler.request import BANDS, Band, Slo
from scheduler.simulator.errors import SimulationError
from scheduler.simulator.fields import Fields
from scheduler.simulator.workload import Arrival

NEEDED = ("at_s", "tenant", "input_tokens", "output_tokens")
COLUMNS = (
    "at_s",
    "tenant",
    "organisation",
    "key",
    "input_tokens",
    "output_tokens",
    "max_tokens",
    "tier",
    "ttft_ms",
    "tpot_ms",
    "max_gap_ms",
    "weight",
    "prefix_id",
    "prefix_tokens",
    "cancel_at_s",
    "cancel_after_tokens",
)
_MS = 1e-3


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Check the header. Raises: `SimulationError`: a column is not known, or is there twice."""
    for number, column in enumerate(columns):
        if column not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise SimulationError(f"{path}: line 1: no column {column!r}: choose from {known}")
        if column in columns[:number]:
            raise SimulationError(f"{path}: line 1: column {column} is there twice")


def read_rows(rows: Iterable[Fields]) -> Iterator[Arrival]:
    """Make an arrival of each row."""
    prefixes: dict[tuple[str, str], int] = {}
    for row in rows:
        tenant_id = row.text("tenant")
        num_prompt_tokens = row.count("input_tokens", least=1)
        num_output_tokens = row.count("output_tokens", least=1)
        max_tokens = row.count("max_tokens", least=1) if row.has("max_tokens") else None
        at_s = row.time_s("at_s")
        num_prefix_tokens = _prefix_tokens(row, num_prompt_tokens)
        prefix = (tenant_id, str(row.values.get("prefix_id", "")))
        yield Arrival(
            at_s=at_s,
            tenant_id=tenant_id,
            organisation_id=_optional_text(row, "organisation"),
            key_id=_optional_text(row, "key"),
            num_prompt_tokens=num_prompt_tokens,
            # What asks for less than its model would draw gets just that.
            num_output_tokens=min(num_output_tokens, max_tokens or num_output_tokens),
            max_tokens=max_tokens,
            weight=row.positive("weight") if row.has("weight") else 1.0,
            band=_band(row),
            slo=Slo(
                _promise_s(row, "ttft_ms"),
                _promise_s(row, "tpot_ms"),
                _promise_s(row, "max_gap_ms"),
            ),
            block_ids=(prefixes.setdefault(prefix, len(prefixes)),) if num_prefix_tokens else (),
            block_tokens=max(1, num_prefix_tokens),
            cancel_after_s=_cancel_after_s(row, at_s),
            cancel_after_tokens=(
                row.count("cancel_after_tokens", least=1)
                if row.has("cancel_after_tokens")
                else None
            ),
        )


def _optional_text(row: Fields, column: str) -> str:
    return row.text(column) if row.has(column) else ""


def _promise_s(row: Fields, column: str) -> float | None:
    return row.positive(column, scale=_MS) if row.has(column) else None


def _band(row: Fields) -> Band:
    if not row.has("tier"):
        return Band.DEFAULT
    name = row.text("tier")
    try:
        return BANDS[name.lower()]
    except KeyError:
        raise row.error("tier", f"{name!r} is none of {', '.join(BANDS)}") from None


def _prefix_tokens(row: Fields, num_prompt_tokens: int) -> int:
    if row.has("prefix_id") is not row.has("prefix_tokens"):
        missing = "prefix_tokens" if row.has("prefix_id") else "prefix_id"
        raise row.error(missing, "is empty, and a prefix has both a name and a length")
    if not row.has("prefix_id"):
        return 0
    num_tokens = row.count("prefix_tokens", least=1)
    if num_tokens > num_prompt_tokens:
        raise row.error("prefix_tokens", f"{num_tokens} is more than the whole prompt")
    return num_tokens


def _cancel_after_s(row: Fields, at_s: float) -> float | None:
    if not row.has("cancel_at_s"):
        return None
    cancel_s = row.time_s("cancel_at_s")
    if cancel_s < at_s:
        raise row.error("cancel_at_s", f"{cancel_s:g} is before the request comes")
    return cancel_s - at_s
