"""Everything that can go wrong, at once and for less than a minute; `make soak` has ten of them."""

from __future__ import annotations

import pytest

from tests.passable import passable_directory
from tests.soak.chaos import chaos

# Both gateways, their stores and seven attackers are on this machine.
pytestmark = pytest.mark.alone


@pytest.mark.timeout(600)
def test_nobody_loses_anything_to_chaos() -> None:
    """No cap is passed, no row is there twice, no item, stream or request of a victim is lost."""
    with passable_directory() as directory:
        figures, samples = chaos(directory, scale=0.0)
    missed = {name: figure.value for name, figure in figures.items() if figure.met is False}
    # Of what happens by chance in so short a time there may be less.
    missed.pop("partitions", None)
    assert missed == {}, samples
