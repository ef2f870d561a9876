"""Seeds of random histories: drawn from the environment, kept where they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.histories import SEED, kept_if_it_fails, seeds


def test_what_failed_once_is_drawn_again_before_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is kept once; without a seed nothing is."""
    kept = tmp_path / "failing.txt"
    monkeypatch.delenv(SEED, raising=False)
    assert seeds(kept) == [None]
    monkeypatch.setenv(SEED, "7")
    assert seeds(kept) == [7]
    for drawn in (5, 5, None):
        with pytest.raises(ValueError, match="wrong") as failure, kept_if_it_fails(drawn, kept):
            raise ValueError("wrong")
        notes = getattr(failure.value, "__notes__", [])
        assert [f"{SEED}={drawn}" in note for note in notes] == [True] * (drawn is not None)
    with kept_if_it_fails(6, kept):
        pass
    assert seeds(kept) == [5, 7]
