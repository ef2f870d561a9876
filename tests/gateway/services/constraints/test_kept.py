"""Compiled grammars are kept within bounds of bytes, for a tenant and in all."""

from __future__ import annotations

from uuid import UUID

from fake_constraint import Spelled
from gateway.services.constraints.kept import GrammarKey, KeptGrammars

ACME, OTHER = UUID(int=1), UUID(int=2)


def key(number: int) -> GrammarKey:
    return GrammarKey("v", bytes([number % 256, number // 256]))


def test_ten_thousand_grammars_leave_what_one_shelf_holds() -> None:
    """A tenant that never asks for the same twice has its newest ones kept, and no more bytes."""
    kept = KeptGrammars(max_tenant_bytes=1000, max_bytes=5000)
    for number in range(10_000):
        kept.put(ACME, key(number), Spelled([], end=1), 100)
        assert kept.num_bytes <= 1000
    assert [kept.get(ACME, key(n)) is not None for n in (9989, 9990, 9999)] == [False, True, True]


def test_what_was_used_last_stays_and_a_neighbour_keeps_its_own() -> None:
    """Asking keeps a grammar; in all, those go first that belong to who has the most."""
    kept = KeptGrammars(max_tenant_bytes=300, max_bytes=400)
    kept.put(OTHER, key(0), Spelled([], end=1), 100)
    for number in range(3):
        kept.put(ACME, key(number), Spelled([], end=1), 100)
    kept.get(ACME, key(0))
    kept.put(ACME, key(3), Spelled([], end=1), 100)
    kept.put(UUID(int=3), key(0), Spelled([], end=1), 100)
    assert kept.get(OTHER, key(0)) is not None
    assert [kept.get(ACME, key(number)) is not None for number in range(4)] == [
        *(True, False, False, True)
    ]


def test_one_above_the_bound_is_not_kept() -> None:
    """It would push out all others."""
    kept = KeptGrammars(max_tenant_bytes=300, max_bytes=400)
    kept.put(ACME, key(0), Spelled([], end=1), 100)
    kept.put(ACME, key(1), Spelled([], end=1), 301)
    assert kept.get(ACME, key(1)) is None
    assert kept.get(ACME, key(0)) is not None


def test_a_worn_grammar_is_kept_for_nobody() -> None:
    """It is not found, another takes its place, and the tenant's others go as one is put down."""
    kept = KeptGrammars(max_tenant_bytes=1000, max_bytes=1000)
    worn = [Spelled([], end=1) for _ in range(2)]
    for number, constraint in enumerate(worn):
        kept.put(ACME, key(number), constraint, 100)
        constraint.is_worn = True
    assert kept.get(ACME, key(0)) is None
    fresh = Spelled([], end=1)
    kept.put(ACME, key(0), fresh, 100)
    assert kept.get(ACME, key(0)) is fresh
    assert kept.num_bytes == 100


def test_what_answers_add_to_a_grammar_counts() -> None:
    """As its tenant asks for any, its oldest go for it; in all, those of who has the most."""
    kept = KeptGrammars(max_tenant_bytes=1000, max_bytes=1500)
    mine = [Spelled([], end=1) for _ in range(4)]
    for number, constraint in enumerate(mine):
        kept.put(ACME, key(number), constraint, 100)
    kept.put(OTHER, key(0), Spelled([], end=1), 600)
    mine[1].grown_bytes = 750
    assert kept.get(ACME, key(3)) is mine[3]
    # 1,150 of a thousand: the oldest went, and then the one that grew.
    assert kept.num_bytes == 200 + 600
    assert [kept.get(ACME, key(number)) is not None for number in range(4)] == [
        *(False, False, True, True)
    ]
    mine[3].grown_bytes = 750
    assert kept.get(ACME, key(3)) is mine[3]
    assert (kept.num_bytes, kept.get(ACME, key(2))) == (850 + 600, None)
    kept.put(UUID(int=3), key(0), Spelled([], end=1), 100)
    assert kept.get(ACME, key(3)) is None
    assert kept.get(OTHER, key(0)) is not None
    assert kept.num_bytes == 600 + 100
