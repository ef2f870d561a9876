"""Which tenants have a label: few, the heaviest, and not by turns."""

from __future__ import annotations

from uuid import UUID

from gateway.telemetry.tenant_ranks import TenantRanks


def use_all(ranks: TenantRanks, used: dict[int, int], now: float) -> None:
    for number, tokens in used.items():
        ranks.use(UUID(int=number), tokens, now)


def test_the_heaviest_come_to_have_the_labels() -> None:
    """Whoever uses most has a label soon, though others were there first."""
    ranks = TenantRanks(2)
    use_all(ranks, {1: 10, 2: 10}, 0.0)
    use_all(ranks, {3: 1000, 4: 500}, 1.0)
    assert ranks.first == {UUID(int=1), UUID(int=2)}
    use_all(ranks, {1: 1}, 20.0)
    assert ranks.first == {UUID(int=3), UUID(int=4)}


def test_a_little_more_takes_no_label_away() -> None:
    """A tenant keeps its label until another has used half as much again."""
    ranks = TenantRanks(1)
    use_all(ranks, {1: 100, 2: 140}, 0.0)
    use_all(ranks, {1: 0}, 20.0)
    assert ranks.first == {UUID(int=1)}
    use_all(ranks, {2: 20, 1: 0}, 40.0)
    assert ranks.first == {UUID(int=2)}


def test_what_was_long_ago_counts_little() -> None:
    """A tenant that was heavy an hour ago is passed by one that is busy now."""
    ranks = TenantRanks(1)
    use_all(ranks, {1: 100_000}, 0.0)
    use_all(ranks, {2: 1000}, 3600.0)
    use_all(ranks, {2: 1000}, 3620.0)
    assert ranks.first == {UUID(int=2)}


def test_memory_is_bounded() -> None:
    """Of a hundred thousand tenants about a thousand are remembered, the heaviest among them."""
    ranks = TenantRanks(3)
    use_all(ranks, dict.fromkeys((1, 2, 3), 10**6), 0.0)
    for number in range(10, 100_000):
        ranks.use(UUID(int=number), 1, number * 1e-3)
    assert len(ranks._used) <= 1024
    assert ranks.first == {UUID(int=number) for number in (1, 2, 3)}
