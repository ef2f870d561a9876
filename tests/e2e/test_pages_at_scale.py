"""Every page of the admin UI and of the portal; `make soak` asks over ten thousand tenants."""

from __future__ import annotations

from typing import Final

import pytest

from tests.passable import passable_directory
from tests.soak.page_parts import pages_at_scale

# With each page asked for so often, a tenant's people ask for more than a minute's reads.
_ASKED: Final = 40


@pytest.mark.timeout(300)
def test_every_page_that_is_timed_is_answered() -> None:
    """Over a small store each is a 200 each time, a tenant's people's too: none is a refusal."""
    with passable_directory() as directory:
        figures, samples = pages_at_scale(directory, scale=0.0, least_asked=_ASKED)
    pages = samples["pages"]
    assert {name: page for name, page in pages.items() if page["status"] != 200} == {}
    assert figures["pages_not_answered"].value == 0
    assert {"batch", "portal-batch", "portal-usage", "usage-small"} <= pages.keys()
