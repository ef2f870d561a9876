"""Logit biases and min_tokens against transformers' processors."""

from __future__ import annotations

import math
from array import array

import numpy as np
import torch
from torch import Tensor
from transformers import MinNewTokensLengthLogitsProcessor, SequenceBiasLogitsProcessor

from engine.contract import NewSequence, SamplingParams
from engine.sampling.logit_bias import BiasTable, add_bias

VOCAB_SIZE = 400


def admit(
    table: BiasTable, slot: int, params: SamplingParams, *, num_prompt_tokens: int = 3
) -> None:
    tokens = array("i", [1] * num_prompt_tokens)
    table.admit(NewSequence(slot, str(slot), tokens, num_prompt_tokens, 0, (), params))


def biased(table: BiasTable, slots: list[int], positions: list[int], logits: Tensor) -> Tensor:
    result = logits.clone()
    entries = table.entries(np.array(slots, np.int32), np.array(positions, np.int64))
    if entries is not None:
        add_bias(result, entries)
    return result


def test_bias_equals_transformers() -> None:
    """Three hundred biases in one row, and one in another, change what transformers changes."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, VOCAB_SIZE, generator=generator)
    many = [(3 * i % VOCAB_SIZE, (i - 150) / 1.5) for i in range(300)]
    table = BiasTable(eos_token_ids=frozenset())
    admit(table, 4, SamplingParams(max_tokens=9, logit_bias=tuple(many)))
    admit(table, 1, SamplingParams(max_tokens=9, logit_bias=((7, -100.0),)))
    found = biased(table, [1, 0, 4], [3, 3, 3], logits)
    assert len(dict(many)) == 300
    for row, bias in ((0, [(7, -100.0)]), (2, many)):
        processor = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias])
        wanted = processor(torch.tensor([[1, 1, 1]]), logits[row : row + 1].clone())
        assert torch.equal(found[row], wanted[0])
    assert torch.equal(found[1], logits[1])


def test_min_tokens_masks_what_ends_a_sequence() -> None:
    """End tokens and stop tokens are masked until enough was generated, as transformers does."""
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    table = BiasTable(eos_token_ids=frozenset({2, 5}))
    admit(table, 0, SamplingParams(max_tokens=9, min_tokens=4, stop_token_ids=(5, 90)))
    processor = MinNewTokensLengthLogitsProcessor(3, 4, [2, 5, 90])
    for num_output in range(6):
        prefix = torch.ones(1, 3 + num_output, dtype=torch.int64)
        wanted = processor(prefix, logits.clone())
        assert torch.equal(biased(table, [0], [3 + num_output], logits), wanted)
        assert (wanted[0, 90] == -math.inf) == (num_output < 4)


def test_ignore_eos_leaves_only_the_stop_tokens_masked() -> None:
    """Where the model's end tokens do not end a sequence, they are drawn like any other."""
    logits = torch.zeros(1, VOCAB_SIZE)
    table = BiasTable(eos_token_ids=frozenset({2}))
    params = SamplingParams(max_tokens=9, min_tokens=4, stop_token_ids=(90,), ignore_eos=True)
    admit(table, 0, params)
    assert biased(table, [0], [3], logits).isinf().nonzero().tolist() == [[0, 90]]


def test_a_mask_outweighs_a_bias() -> None:
    """An end token that a bias favours stays masked, and has its bias afterwards."""
    logits = torch.zeros(1, VOCAB_SIZE)
    table = BiasTable(eos_token_ids=frozenset({2}))
    admit(table, 0, SamplingParams(max_tokens=9, min_tokens=1, logit_bias=((2, 100.0),)))
    assert biased(table, [0], [3], logits)[0, 2] == -math.inf
    assert biased(table, [0], [4], logits)[0, 2] == 100.0


def test_a_slot_given_back_has_no_bias() -> None:
    """A slot's next sequence starts without the bias and the mask of the one before."""
    table = BiasTable(eos_token_ids=frozenset({2}))
    params = SamplingParams(max_tokens=9, min_tokens=4, logit_bias=((7, 1.0),))
    slots, positions = np.array([0], np.int32), np.array([3], np.int64)
    for forget in (lambda: table.release([0]), table.clear):
        admit(table, 0, params)
        assert table.entries(slots, positions) is not None
        forget()
        assert table.entries(slots, positions) is None
