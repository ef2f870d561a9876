"""How many uploads or downloads there are at a time."""

from __future__ import annotations

from contextlib import ExitStack
from uuid import uuid4

import pytest

from gateway.errors import Overloaded, TenantLimited
from gateway.services.files import Places


def test_a_tenant_has_a_part_of_the_places() -> None:
    """Who has all of its own is refused while others are not; all together have an end too."""
    places = Places("uploads", of_tenant=2, in_all=3)
    one, other = uuid4(), uuid4()
    with ExitStack() as stack:
        for tenant in (one, one):
            stack.enter_context(places.held(tenant))
        with pytest.raises(TenantLimited) as own, places.held(one):
            pass
        assert own.value.code == "too_many_uploads"
        stack.enter_context(places.held(other))
        with pytest.raises(Overloaded), places.held(other):
            pass
        with pytest.raises(Overloaded), places.held(uuid4()):
            pass
    assert places.num_taken == 0
    with places.held(one):
        assert places.num_taken == 1


def test_tenants_of_one_organisation_leave_places_to_others() -> None:
    """However many there are, each with one upload."""
    organisation, other = uuid4(), uuid4()
    places = Places(
        "uploads", of_tenant=2, in_all=8, owner_of=lambda t: t if t == other else organisation
    )
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(places.held(uuid4()))
        with pytest.raises(Overloaded), places.held(uuid4()):
            pass
        stack.enter_context(places.held(other))
