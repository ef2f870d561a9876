"""Whose cached block goes next, against a model that looks at all of them each time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.idle_blocks import KEPT_TURNS, IdleBlocks


def test_who_has_the_most_gives_its_oldest() -> None:
    """An owner with fewer blocks than another loses none, however long they were not used."""
    idle = IdleBlocks(8)
    idle.add([1, 2], "few")
    idle.add([3, 4, 5, 6], "many")
    assert idle.take(2) == [3, 4]
    idle.add([7, 0, 3], "many")
    assert idle.take(3) == [5, 6, 7]


def test_one_owner_alone_gives_what_was_used_longest_ago() -> None:
    """A block that was used in between goes after those that were not."""
    idle = IdleBlocks(4)
    idle.add([0, 1, 2], "a")
    idle.remove([0], "a")
    idle.add([0], "a")
    assert idle.take(3) == [1, 2, 0]


def test_who_was_not_seen_for_long_goes_first() -> None:
    """Blocks of an owner that comes no more are kept for some turns, and then for nobody."""
    idle = IdleBlocks(4)
    idle.add([0], "gone")
    idle.add([1, 2, 3], "here")
    for _ in range(KEPT_TURNS * 4):
        [block_id] = idle.take(1)
        assert block_id != 0
        idle.add([block_id], "here")
    assert idle.take(1) == [0]


def test_who_was_seen_again_is_kept_beside_who_was_not() -> None:
    """Whoever finds its block again comes as late as whoever has just given one back."""
    idle = IdleBlocks(4)
    idle.add([0], "first")
    idle.add([1], "second")
    idle.remove([0], "first")
    idle.add([0, 2, 3], "first")
    for _ in range(KEPT_TURNS * 4):
        [block_id] = idle.take(1)
        assert block_id != 1
        idle.add([block_id], "first")
    assert idle.take(1) == [1]


def test_turns_count_though_nobody_else_was_there() -> None:
    """Who gave up so many blocks while it was alone is as good as gone for who comes then."""
    idle = IdleBlocks(4)
    idle.add(range(KEPT_TURNS * 4 + 1), "alone")
    idle.take(KEPT_TURNS * 4)
    idle.add([100, 101], "new")
    assert idle.take(1) == [KEPT_TURNS * 4]


def test_nothing_is_remembered_of_owners_that_are_gone() -> None:
    """Thousands that come and go leave no more than a few entries."""
    idle = IdleBlocks(4)
    idle.add([0, 1, 2], "here")
    for name in range(5000):
        idle.add([3], name)
        idle.remove([3], name)
    assert len(idle._heap) < 100


Step = tuple[str, int, int]
KINDS = ["add", "use", "take"]


def check(steps: list[Step], num_blocks: int) -> None:
    """Do the steps: of those seen lately one with the most gives its least recently used block."""
    idle, names = IdleBlocks(num_blocks), range(1 + max((name for _, name, _ in steps), default=0))
    held: dict[int, list[int]] = {name: [] for name in names}
    seen_at = dict.fromkeys(names, 0)
    order: list[int] = []
    num_taken = num_made = 0
    for what, name, number in steps:
        if what == "take":
            for block_id in idle.take(min(number, sum(map(len, held.values())))):
                [owner] = [one for one in names if block_id in held[one]]
                [oldest, *_] = [one for one in order if held[one]]
                if num_taken - seen_at[oldest] >= KEPT_TURNS * num_blocks:
                    assert owner == oldest
                else:
                    assert len(held[owner]) == max(map(len, held.values()))
                assert held[owner].pop(0) == block_id
                num_taken += 1
            continue
        if what == "add":
            blocks = list(range(num_made, num_made + number))
            num_made += number
        else:
            blocks = held[name][: number // 2]
            if not blocks:
                continue
            del held[name][: len(blocks)]
            idle.remove(blocks, name)
        idle.add(blocks, name)
        held[name] += blocks
        seen_at[name] = num_taken
        order = [*(one for one in order if one != name), name]


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.integers(1, 5)), max_size=80)
)
def test_blocks_go_as_the_rule_says(steps: list[Step]) -> None:
    """Whatever owners do, a model that looks at all of them each time agrees."""
    check(steps, num_blocks=2)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_go_as_the_rule_says_for_long(seed: int) -> None:
    """So it is after thousands of blocks, some owners being away for long."""
    draw = random.Random(seed)
    steps: list[Step] = []
    for _ in range(40):
        here = draw.sample(range(30), draw.randrange(1, 20))
        steps += [(draw.choice(KINDS), draw.choice(here), draw.randrange(1, 6)) for _ in range(100)]
    check(steps, num_blocks=8)
