"""How steps get smaller after one that found no memory."""

from __future__ import annotations

import fakes
from scheduler.step.limits import StepLimits


def test_prompts_go_first_then_rows_then_nothing() -> None:
    """Tokens halve down to the smallest chunk, rows to one; after that all is as at first."""
    info = fakes.make_engine(max_num_seqs=4, max_num_batched_tokens=100, num_blocks=8).info
    limits = StepLimits(info)
    assert (limits.max_num_tokens, limits.max_num_rows) == (100, 4)
    seen = []
    while limits.shrink(limits.max_num_tokens, limits.max_num_rows, decodes=False):
        seen.append((limits.max_num_tokens, limits.max_num_rows))
    assert seen == [(50, 4), (25, 4), (16, 4), (16, 2), (16, 1)]
    assert (limits.max_num_tokens, limits.max_num_rows) == (100, 4)
    assert limits.num_shrinks == 5


def test_a_step_that_only_decodes_costs_rows() -> None:
    """Prompts keep their chunks where it was the rows that found no memory."""
    info = fakes.make_engine(max_num_seqs=64, max_num_batched_tokens=100, num_blocks=8).info
    limits = StepLimits(info)
    assert limits.shrink(40, 40, decodes=True)
    assert (limits.max_num_tokens, limits.max_num_rows) == (100, 20)


def test_rows_never_outnumber_tokens() -> None:
    """Each row that decodes wants a token, so fewer tokens mean fewer rows."""
    info = fakes.make_engine(max_num_seqs=64, max_num_batched_tokens=100, num_blocks=8).info
    limits = StepLimits(info)
    assert limits.shrink(70, 60, decodes=False)
    assert (limits.max_num_tokens, limits.max_num_rows) == (35, 35)
