"""Scoring tokens: log-softmax, ranks, alternatives, and edits that must not show."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.sampling import logprobs
from engine.sampling.logprobs import score_tokens


@pytest.mark.parametrize("max_values", [1, 150, 1 << 23], ids=str)
def test_scores_are_the_log_softmax(max_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities, ranks and the likeliest tokens are those of log_softmax, in any cut."""
    monkeypatch.setattr(logprobs, "_MAX_VALUES", max_values)
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)) * 4
    token_ids = np.arange(9) * 5
    num_top = np.array([0, 1, 20, 3, 0, 50, 2, 5, 7])
    found = score_tokens(logits, token_ids, num_top)
    for row, entry in enumerate(found):
        wanted = torch.log_softmax(logits[row].double(), 0)
        order = wanted.argsort(descending=True).tolist()
        assert entry.token_id == token_ids[row]
        assert entry.logprob == pytest.approx(float(wanted[entry.token_id]), abs=1e-5)
        assert entry.rank == order.index(entry.token_id) + 1
        assert [token_id for token_id, _ in entry.top] == order[: num_top[row]]
        for token_id, logprob in entry.top:
            assert logprob == pytest.approx(float(wanted[token_id]), abs=1e-5)


def test_tokens_that_tie_share_a_rank() -> None:
    """A rank counts the tokens that are strictly likelier."""
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]]).expand(4, -1)
    found = score_tokens(logits, np.arange(4), np.zeros(4, np.int64))
    assert [entry.rank for entry in found] == [3, 1, 1, 4]


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    """Asking for more alternatives than the vocabulary has gives the vocabulary."""
    found = score_tokens(torch.randn(1, 5), np.array([0]), np.array([20]))
    assert len(found[0].top_ids) == 5
