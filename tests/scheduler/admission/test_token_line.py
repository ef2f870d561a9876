"""Sums of waiting tokens before a place, in any order of joining and leaving."""

from __future__ import annotations

import random

import pytest

from scheduler.admission.token_line import TokenLine


@pytest.mark.parametrize("seed", range(3))
def test_sums_are_those_of_a_sorted_list(seed: int) -> None:
    """However requests join and leave, what is before a place is what a sorted list says."""
    draw = random.Random(seed)
    line = TokenLine()
    known: dict[int, tuple[float, int]] = {}
    for ordinal in range(6000):
        if known and draw.random() < 0.3:
            leaving = draw.choice(list(known))
            key, _ = known.pop(leaving)
            line.remove(((key,), True, leaving))
        key, num_tokens = float(draw.randrange(500)), draw.randrange(1, 3000)
        known[ordinal] = key, num_tokens
        line.add(((key,), True, ordinal), num_tokens)
        if ordinal % 97 == 0:
            place = ((float(draw.randrange(500)),), draw.random() < 0.5, draw.randrange(6000))
            before = sum(n for o, (k, n) in known.items() if ((k,), True, o) < place)
            assert line.before(place) == before
    assert line.total == sum(num_tokens for _, num_tokens in known.values())
    for ordinal, (key, _) in known.items():
        line.remove(((key,), True, ordinal))
    assert not line
    assert line.before(((1e9,), True, 0)) == line.total == 0


def test_equal_keys_go_by_age_and_by_having_run() -> None:
    """Of equal keys, one that ran before comes first, then the older one."""
    line = TokenLine()
    line.add(((1.0,), True, 5), 10)
    line.add(((1.0,), False, 7), 100)
    assert line.before(((1.0,), True, 5)) == 100
    assert line.before(((1.0,), True, 6)) == 110
    assert line.before(((1.0,), False, 7)) == 0
