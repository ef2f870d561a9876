"""The part of `soak-restore`: a backup that is restored."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from scheduler.bench.report import Figure, at_least, at_most
from tests.soak import restore_drill as drill

Part = tuple[dict[str, Figure], dict[str, Any]]

_ROWS = 10_000


def restore_drill(directory: Path, scale: float = 1.0) -> Part:
    """Back a server of 10,000 ledger rows up under load, and restore it elsewhere."""
    result = uvloop.run(drill.restore_drill(directory, num_rows=max(100, round(_ROWS * scale))))
    figures = {
        "restore_ledger_rows": at_least(result.rows_dumped, _ROWS, "rows"),
        "restore_failed_under_backup": at_most(len(result.failed), 0, "requests"),
        "restore_rows_missing": at_most(result.missing, 0, "rows"),
        "restore_rows_unlike": at_most(result.unlike, 0, "rows"),
        "restore_sums_apart": at_most(result.sums_apart + result.hourly_apart, 0, "units"),
        "restore_rows_of_journal": Figure(result.journal_rows, "rows"),
        "restore_keys_refused": at_most(result.keys_refused, 0, "keys"),
        "restore_overshoot_tokens": at_most(result.overshoot_tokens, 0, "tokens"),
        "restore_cap_left_tokens": at_most(result.cap_left_tokens, 0, "tokens"),
        "restore_files_unlike": at_most(result.files_unlike, 0, "files"),
        "restore_audit_faults": at_most(result.audit_faults, 0, "faults"),
        "restore_open_to_others": at_most(len(result.open_modes), 0, "files"),
    }
    return figures, {"restore_drill": asdict(result)}
