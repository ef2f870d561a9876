"""Log-probabilities in columns read as the objects that were put in."""

from __future__ import annotations

import gc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine.contract import TokenLogprobs
from engine.scored import ScoredPrompt, ScoredTokens

ENTRIES = st.lists(
    st.builds(
        lambda token_id, logprob, rank, top: TokenLogprobs(
            token_id,
            logprob,
            rank,
            array("i", [other for other, _ in top]),
            array("f", [value for _, value in top]),
        ),
        st.integers(0, 2**31 - 1),
        st.floats(-100, 0),
        st.integers(1, 2**31 - 1),
        st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 0, width=32)), max_size=3),
    ),
    max_size=6,
)


@given(ENTRIES, ENTRIES, st.slices(8))
def test_what_is_read_is_what_was_added(
    some: list[TokenLogprobs], more: list[TokenLogprobs], part: slice
) -> None:
    """By index, by slice and in order, whatever it came in; of a prompt the first has none."""
    scored, prompt = ScoredTokens(), ScoredPrompt()
    for each in (scored, prompt):
        each.extend(some)
        each.extend(more)
    entries = some + more
    assert list(scored) == [scored[index] for index in range(len(scored))] == entries
    assert scored[part] == entries[part]
    assert list(prompt) == [prompt[index] for index in range(len(prompt))] == [None, *entries]
    assert prompt[part] == [None, *entries][part]


def test_many_are_few_objects() -> None:
    """What ten thousand tokens take is nothing that the collector looks at one by one."""
    scored = ScoredTokens()
    entry = TokenLogprobs(7, -1.0, 1, array("i", range(20)), array("f", [-1.0] * 20))
    gc.collect()
    before = len(gc.get_objects())
    scored.extend([entry] * 10_000)
    assert len(gc.get_objects()) - before < 10
