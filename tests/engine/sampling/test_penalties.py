"""Penalties against transformers' processors and the formulas of vLLM, and their state table."""

from __future__ import annotations

import tracemalloc
from array import array

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from engine.contract import NewSequence, SamplingParams
from engine.sampling.penalties import PenaltyTable, penalise

VOCAB_SIZE = 40


def make_table() -> PenaltyTable:
    return PenaltyTable(max_num_seqs=8)


def admit(
    table: PenaltyTable, slot: int, prompt: list[int], output: list[int], **penalties: float
) -> None:
    params = SamplingParams(max_tokens=99, **penalties)  # type: ignore[arg-type]
    tokens = array("i", [*prompt, *output])
    table.admit(NewSequence(slot, str(slot), tokens, len(prompt), 0, (), params))


def penalised(table: PenaltyTable, slots: list[int], logits: Tensor) -> Tensor:
    """Apply the table's penalties to a copy of the logits, one row a slot."""
    result = logits.clone()
    entries = table.entries(np.array(slots, np.int32))
    if entries is not None:
        penalise(result, entries)
    return result


def expected(logits: Tensor, prompt: list[int], output: list[int], **penalties: float) -> Tensor:
    """Penalise one row the way vLLM does: dense counts, over the whole vocabulary."""
    repetition = penalties.get("repetition_penalty", 1.0)
    row = logits[None].clone()
    row = RepetitionPenaltyLogitsProcessor(repetition)(torch.tensor([prompt + output]), row)[0]
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB_SIZE)
    row -= penalties.get("frequency_penalty", 0.0) * counts
    row -= penalties.get("presence_penalty", 0.0) * (counts > 0)
    return row


CASES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"frequency_penalty": 0.8},
    {"frequency_penalty": -1.5},
    {"presence_penalty": 1.1},
    {"repetition_penalty": 1.7, "frequency_penalty": 0.3, "presence_penalty": -0.4},
]


@pytest.mark.parametrize("penalties", CASES, ids=str)
def test_a_row_is_penalised_as_transformers_and_vllm_do(penalties: dict[str, float]) -> None:
    """Logits change exactly as the reference's, for tokens of the prompt, the output and both."""
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 5
    prompt, output = [3, 3, 7, 9], [9, 11, 11, 11, 3]
    table = make_table()
    admit(table, 5, prompt, output, **penalties)
    assert torch.equal(
        penalised(table, [5], logits)[0], expected(logits[0], prompt, output, **penalties)
    )


def test_drawn_tokens_are_counted_as_they_come() -> None:
    """Rows that draw side by side have at each step the penalties of their own tokens alone."""
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(1)
    table = make_table()
    prompts = [rng.integers(0, VOCAB_SIZE, n).tolist() for n in (1, 5, 90, 3, 2, 8)]
    outputs: list[list[int]] = [[] for _ in CASES]
    for slot, penalties in enumerate(CASES):
        admit(table, slot, prompts[slot], [], **penalties)
    for step in range(150):
        slots = rng.permutation(len(CASES))[: rng.integers(1, len(CASES) + 1)].tolist()
        if step < 2:
            slots = list(range(len(CASES)))
        drawn = rng.integers(0, VOCAB_SIZE, len(slots))
        table.append(np.array(slots, np.int32), drawn)
        for slot, token_id in zip(slots, drawn.tolist(), strict=True):
            outputs[slot].append(token_id)
        if step % 10 < 2:
            logits = torch.randn(len(slots), VOCAB_SIZE, generator=generator)
            found = penalised(table, slots, logits)
            for row, slot in enumerate(slots):
                wanted = expected(logits[row], prompts[slot], outputs[slot], **CASES[slot])
                assert torch.equal(found[row], wanted)


def test_a_token_that_it_came_with_is_known_whatever_was_drawn_before() -> None:
    """Tokens that come later stand behind those, and are no place to look for them."""
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(4))
    table = make_table()
    asked = {"repetition_penalty": 1.4, "frequency_penalty": 0.5}
    admit(table, 0, [5, 9], [9], **asked)
    for token_id in (1, 2, 3, 0, 9):
        table.append(np.array([0], np.int32), np.array([token_id]))
    wanted = expected(logits[0], [5, 9], [9, 1, 2, 3, 0, 9], **asked)
    assert torch.equal(penalised(table, [0], logits)[0], wanted)


def test_a_returning_sequence_has_the_counts_it_left_with() -> None:
    """Admission with generated tokens counts like drawing them did, in a slot others have used."""
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    table = make_table()
    admit(table, 0, [1, 2], [], repetition_penalty=1.4, frequency_penalty=0.5)
    for token_id in (5, 2, 5):
        table.append(np.array([0], np.int32), np.array([token_id]))
    before = penalised(table, [0], logits)
    table.release([0])
    admit(table, 0, [9] * 30, [8] * 9, presence_penalty=1.0)
    table.release([0])
    admit(table, 0, [1, 2], [5, 2, 5], repetition_penalty=1.4, frequency_penalty=0.5)
    assert torch.equal(penalised(table, [0], logits), before)


def test_rows_without_penalties_are_left_alone() -> None:
    """In a mixed batch only the rows that asked change, and a slot given back asks no more."""
    logits = torch.randn(3, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    table = make_table()
    admit(table, 1, [4], [4], presence_penalty=2.0)
    admit(table, 2, [4], [4])
    changed = (penalised(table, [2, 1, 6], logits) != logits).nonzero().tolist()
    assert changed == [[1, 4]]
    table.release([1])
    assert table.entries(np.array([2, 1, 6], np.int32)) is None
    admit(table, 1, [4], [4], presence_penalty=2.0)
    table.clear()
    assert table.entries(np.array([1], np.int32)) is None


def test_frequency_and_presence_leave_the_prompt_alone() -> None:
    """A prompt's tokens are not output: without output there is nothing to penalise."""
    table = make_table()
    admit(table, 0, [1, 2, 3], [], frequency_penalty=1.0, presence_penalty=1.0)
    assert table.entries(np.array([0], np.int32)) is None


def test_a_row_of_many_tokens_makes_no_other_row_wider() -> None:
    """What a step reads and holds of 255 short rows does not grow with the tokens of another."""
    table = PenaltyTable(max_num_seqs=256)
    slots = np.arange(256, dtype=np.int32)
    tracemalloc.start()
    try:
        admit(table, 0, list(range(30_000)), [], repetition_penalty=1.1)
        for slot in range(1, 256):
            admit(table, slot, [1], [2], presence_penalty=1.0)
        table.append(slots, np.full(256, 3))
        entries = table.entries(slots)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert entries is not None
    assert len(entries.rows) == 30_000 + 255 * 2
    assert peak_bytes < 4 << 20
