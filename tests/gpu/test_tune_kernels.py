"""What the kernels' sweep is made of, where there is no kernel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from engine.kernels.twins import operations as twins
from tests.gpu.attention_cases import AttentionBatch, AttentionCase, Heads, make_inputs
from tests.gpu.tune_kernels import choose_best

CPU = torch.device("cpu")


def test_a_case_is_a_batch_that_can_be_computed() -> None:
    """Prefills and decodes of a case attend causally over all of their contexts."""
    heads = Heads(4, 2, 16)
    cases = (
        AttentionCase(3, 1, 100),
        AttentionCase(3, 1, 100, is_ragged=True),
        AttentionCase(2, 70, 100),
    )
    for case in cases:
        batch = AttentionBatch(case, heads, dtype=torch.float32, kv_dtype=torch.float32, device=CPU)
        found = batch.attend(twins)
        inputs = batch.inputs
        k_cache, v_cache = batch._caches[0]
        blocks = inputs.block_tables[1].long()
        n = case.context_lens()[1]
        places = (blocks[:, None] * 64 + torch.arange(64)).flatten()[:n]
        queries = batch.q[case.num_queries : 2 * case.num_queries]
        seen = torch.arange(n) <= inputs.positions[inputs.token_rows == 1][:, None]
        expected = F.scaled_dot_product_attention(
            queries.transpose(0, 1),
            k_cache[places].transpose(0, 1),
            v_cache[places].transpose(0, 1),
            attn_mask=seen,
            enable_gqa=True,
        )
        ours = found[case.num_queries : 2 * case.num_queries].view(case.num_queries, 4, 16)
        torch.testing.assert_close(ours.transpose(0, 1), expected)


def test_ragged_contexts_are_as_long_on_average() -> None:
    """Rows differ by up to fifteen times, and read together what equal ones would."""
    lens = AttentionCase(256, 1, 1024, is_ragged=True).context_lens()
    assert max(lens) > 8 * min(lens)
    assert abs(sum(lens) / 256 - 1024) < 100


def test_a_batch_is_parted_as_settings_say() -> None:
    """Where fewer programs run at once, contexts are read in fewer pieces."""
    batch = AttentionBatch(
        AttentionCase(1, 1, 8192),
        Heads(4, 2, 16),
        dtype=torch.float32,
        kv_dtype=torch.float32,
        device=CPU,
    )
    assert len(batch.inputs.piece_rows) == 64
    narrow = make_inputs(AttentionCase(1, 1, 8192), CPU, 16)
    assert narrow.piece_rows.tolist() == [0] * 16


def test_best_is_relative_to_the_default() -> None:
    """A short batch counts as much as a long one, and what gains nothing is not kept."""
    short, long = {"num_warps": 2}, {"num_warps": 8}
    best = choose_best([1.0, 100.0], [(short, [0.5, 101.0]), (long, [1.5, 90.0])])
    assert best is not None
    assert best[0] == short
    assert math.isclose(best[1], 2 / 1.51)
    assert choose_best([1.0], [(short, [0.995])]) is None
    assert choose_best([1.0], []) is None
