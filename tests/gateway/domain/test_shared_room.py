"""Of what tenants share some is left for who comes next, however many hold all they get."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.shared_room import SharedRoom

NEWCOMER = UUID(int=0)
CROWD = [UUID(int=number) for number in range(1, 41)]
SYBILS = [UUID(int=number) for number in range(1000, 1200)]
# All but the newcomer are of one organisation.
OWNERS = dict.fromkeys(SYBILS, UUID(int=1)) | {NEWCOMER: NEWCOMER}


def fill(room: SharedRoom, crowd: list[UUID]) -> None:
    """Have each take all that is left to it, until nobody gets more."""
    while any(room.left(tenant) for tenant in crowd):
        for tenant in crowd:
            room.take(tenant, room.left(tenant))


@pytest.mark.parametrize(
    ("in_all", "of_tenant"), [(400, 100), (32, 4), (7, 7), (16 << 20, 1 << 20)]
)
def test_one_alone_has_its_part_to_the_last(in_all: int, of_tenant: int) -> None:
    """Neither one less nor one more, in steps of one or at once."""
    room = SharedRoom(in_all, of_tenant=of_tenant)
    assert room.left(NEWCOMER) == of_tenant
    room.take(NEWCOMER, of_tenant - 1)
    assert room.left(NEWCOMER) == 1
    assert not room.is_above_its_own(NEWCOMER, 1)
    room.take(NEWCOMER, 1)
    assert room.left(NEWCOMER) == 0
    assert room.is_above_its_own(NEWCOMER, 1)


@pytest.mark.parametrize("num_tenants", [1, 3, 4, 8, 16])
def test_a_crowd_that_takes_all_it_gets_leaves_some(num_tenants: int) -> None:
    """At once three quarters of what each found free; once they gave back, 3 / (3 + k)."""
    room, crowd = SharedRoom(256 << 20, of_tenant=64 << 20), CROWD[:num_tenants]
    fill(room, crowd)
    assert room.in_all - room.num_taken == pytest.approx(room.in_all * 0.75**num_tenants, rel=1e-3)
    for _ in range(200):
        for tenant in crowd:
            room.give_back(tenant, room.taken_by(tenant) // 2)
            room.take(tenant, room.left(tenant))
    part = room.in_all / (3 + num_tenants)
    assert [room.taken_by(tenant) for tenant in crowd] == pytest.approx(
        [part] * num_tenants, rel=0.01
    )
    assert room.left(NEWCOMER) == pytest.approx(3 * part / 4, rel=0.01)


def test_of_few_places_who_has_none_gets_one_while_there_is_any() -> None:
    """Eight tenants leave thirteen of 32, where they had them all; forty have one each at least."""
    room = SharedRoom(32, of_tenant=4, least=1)
    fill(room, CROWD[:8])
    assert 32 - room.num_taken == 13
    for number, tenant in enumerate(CROWD[8:]):
        assert room.left(tenant) == (number < 13)
        room.take(tenant, room.left(tenant))
    assert room.num_taken == 32


def test_an_organisation_leaves_a_quarter_however_many_tenants_it_has() -> None:
    """Where each tenant had a part of its own, two hundred of one left another nothing."""
    room = SharedRoom(256 << 20, of_tenant=64 << 20, owner_of=OWNERS.__getitem__)
    fill(room, SYBILS)
    assert room.num_taken == pytest.approx(192 << 20, rel=1e-3)
    assert room.left(NEWCOMER) == pytest.approx(16 << 20, rel=1e-3)
    places = SharedRoom(32, of_tenant=4, least=1, owner_of=OWNERS.__getitem__)
    fill(places, SYBILS)
    assert places.num_taken == 24
    assert places.left(NEWCOMER) == 1


def test_a_tenant_of_no_organisation_has_its_part() -> None:
    """Two that are their own have what they would have without any owners."""
    rooms = [SharedRoom(400, of_tenant=100, owner_of=owner_of) for owner_of in (None, lambda t: t)]
    for room in rooms:
        fill(room, CROWD[:2])
    assert [room.taken_by(CROWD[0]) for room in rooms] == [100, 100]
    assert rooms[0].num_taken == rooms[1].num_taken
    assert SharedRoom(7, of_tenant=7, owner_of=lambda t: t).left(NEWCOMER) == 7


def test_what_a_tenant_holds_is_given_back_by_whose_it_was() -> None:
    """A tenant that changes its organisation meanwhile leaves nothing behind in either."""
    owners = dict.fromkeys((*CROWD[:2], NEWCOMER), UUID(int=100))
    room = SharedRoom(400, of_tenant=300, owner_of=owners.__getitem__)
    for tenant in CROWD[:2]:
        room.take(tenant, 100)
    owners[CROWD[0]] = UUID(int=200)
    room.take(CROWD[0], 50)
    # Together they have 250 of 400, and three times what is free at most.
    assert [room.left(tenant) for tenant in CROWD[:2]] == [50, 50]
    room.give_back(CROWD[0], 150)
    assert room.left(CROWD[0]) == 225
    assert room.left(CROWD[1]) == 200
    room.give_back(CROWD[1], 100)
    assert room.num_taken == 0
    assert room.left(NEWCOMER) == 300


@given(st.lists(st.tuples(st.sampled_from(CROWD[:6]), st.integers(0, 150)), max_size=80))
def test_what_is_left_is_never_more_than_there_is(moves: list[tuple[UUID, int]]) -> None:
    """Whoever takes and gives back: within all, within its part, and none is counted twice."""
    held = dict.fromkeys(CROWD[:6], 0)
    room = SharedRoom(400, of_tenant=100, least=1, owner_of=lambda tenant: CROWD[tenant.int % 2])
    for tenant, number in moves:
        left = room.left(tenant)
        assert 0 <= left <= 400 - room.num_taken
        if number <= left:
            room.take(tenant, number)
            held[tenant] += number
            assert held[tenant] <= 100
            for owner in (0, 1):
                assert sum(held[tenant] for tenant in held if tenant.int % 2 == owner) <= 300
        else:
            room.give_back(tenant, held[tenant] // 2)
            held[tenant] -= held[tenant] // 2
        assert room.num_taken == sum(held.values())
        assert room.taken_by(tenant) == held[tenant]
