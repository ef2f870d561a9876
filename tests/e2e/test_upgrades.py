"""The release before this one and this one on one store; `make soak ARGS="--part upgrades"`."""

from __future__ import annotations

import pytest

from tests.faults.old_tree import RELEASE_BEFORE, is_in_history
from tests.passable import passable_directory
from tests.soak.upgrades import upgrade_beside

pytestmark = [
    pytest.mark.history,
    pytest.mark.thorough,
    pytest.mark.skipif(not is_in_history(), reason=f"{RELEASE_BEFORE} is not in this clone"),
]


@pytest.mark.timeout(240)
def test_a_release_takes_anothers_place_under_load() -> None:
    """Keys, limits, batches, bills and changes of either release are the other's too."""
    with passable_directory() as directory:
        figures, samples = upgrade_beside(directory, scale=0.0)
    assert {name: figure.value for name, figure in figures.items() if figure.met is False} == {}, (
        samples
    )
    assert samples["schemas"][0] != samples["schemas"][1], "else nothing was upgraded"
