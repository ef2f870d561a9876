"""Scoring tokens: log-softmax, ranks, alternatives, and edits that must not show."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch

from engine.contract import NewSequence, SamplingParams
from engine.sampling import logprobs
from engine.sampling.logprobs import score_tokens
from engine.sampling.state import SamplingState


@pytest.fixture(params=["torch", "compiled"])
def native(request: pytest.FixtureRequest, native_library: bool) -> bool:
    """Tell whether the compiled operators score; where nothing is compiled, they never do."""
    return request.param == "compiled" and native_library


@pytest.mark.parametrize("max_values", [1, 150, 1 << 23], ids=str)
def test_scores_are_the_log_softmax(
    max_values: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities, ranks and the likeliest tokens are those of log_softmax, in any cut."""
    monkeypatch.setattr(logprobs, "_MAX_VALUES", max_values)
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)) * 4
    token_ids = np.arange(9) * 5
    num_top = np.array([0, 1, 20, 3, 0, 50, 2, 5, 7])
    found = score_tokens(logits, token_ids, num_top, native=native)
    for row, entry in enumerate(found):
        wanted = torch.log_softmax(logits[row].double(), 0)
        order = wanted.argsort(descending=True).tolist()
        assert entry.token_id == token_ids[row]
        assert entry.logprob == pytest.approx(float(wanted[entry.token_id]), abs=1e-5)
        assert entry.rank == order.index(entry.token_id) + 1
        assert [token_id for token_id, _ in entry.top] == order[: num_top[row]]
        for token_id, logprob in entry.top:
            assert logprob == pytest.approx(float(wanted[token_id]), abs=1e-5)


def test_tokens_that_tie_share_a_rank(native: bool) -> None:
    """A rank counts the tokens that are strictly likelier."""
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]]).repeat(4, 1)
    found = score_tokens(logits, np.arange(4), np.zeros(4, np.int64), native=native)
    assert [entry.rank for entry in found] == [3, 1, 1, 4]


def test_more_alternatives_than_tokens_are_all_tokens(native: bool) -> None:
    """Asking for more alternatives than the vocabulary has gives the vocabulary."""
    found = score_tokens(torch.randn(1, 5), np.array([0]), np.array([20]), native=native)
    assert len(found[0].top_ids) == 5


def test_of_equal_alternatives_all_are_as_likely(native: bool) -> None:
    """Where several tie at the end of what is asked for, any of them may be named, each once."""
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, 2.0, 1.0]])
    [found] = score_tokens(logits, np.array([0]), np.array([4]), native=native)
    assert list(found.top_ids[:2]) == [1, 4]
    assert len(set(found.top_ids)) == 4
    assert set(found.top_ids[2:]) < {0, 2, 3, 5}
    assert found.top_logprobs[2] == found.top_logprobs[3] == pytest.approx(found.logprob)


@pytest.mark.parametrize("place", [0, 20, 36])
def test_a_row_with_a_nan_is_scored_as_such(native: bool, place: int) -> None:
    """A fault in a row's logits shows in its scores and in no other's."""
    logits = torch.zeros(3, 37)
    logits[1, place] = float("nan")
    found = score_tokens(logits, np.array([0, 5, 0]), np.array([2, 2, 2]), native=native)
    assert [np.isfinite(entry.logprob) for entry in found] == [True, False, True]


def test_a_slot_given_back_is_scored_for_nobody() -> None:
    """A slot's next sequence, which asks for no log-probabilities, has none."""
    state = SamplingState(max_num_seqs=2, vocab_size=8, eos_token_ids=frozenset())
    slots = np.array([1], np.int32)
    for forget in (lambda: state.release([1]), state.clear):
        params = SamplingParams(max_tokens=3, logprobs=2)
        state.admit(NewSequence(1, "a", array("i", [1]), 1, 0, (), params))
        assert state.logprob_rows(slots) is not None
        forget()
        assert state.logprob_rows(slots) is None
