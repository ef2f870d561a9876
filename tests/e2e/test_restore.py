"""The restore drill at a small size: the same as `make soak ARGS="--part restore_drill"`."""

from __future__ import annotations

from pathlib import Path

import uvloop

from tests.soak.restore_drill import TOKENS, restore_drill


def test_what_is_backed_up_under_load_is_there_elsewhere(made_data_dir: Path) -> None:
    """Rows, sums, keys, files and audit log are those of the backup's moment; a cap still holds."""
    made_data_dir.rename(made_data_dir.parent / "first")
    found = uvloop.run(restore_drill(made_data_dir.parent, num_rows=60))
    assert found.rows_dumped >= 60
    assert found.rows_at_end > found.rows_restored == found.rows_dumped
    assert (found.missing, found.unlike, found.sums_apart, found.hourly_apart) == (0, 0, 0, 0)
    assert found.failed == found.open_modes == []
    assert (found.keys_refused, found.files_unlike, found.audit_faults) == (0, 0, 0)
    assert found.cap - found.used_at_restore >= 10 * TOKENS
    assert found.used_at_end == found.cap
    assert found.refused_code == "insufficient_quota"
