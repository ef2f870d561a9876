"""Paged attention: Triton's kernels against their twin, and the twin against the CPU's backend."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.cpu.attention import ReferenceAttention
from engine.kernels import attention, tuned
from engine.kernels.operations import StepInputs
from engine.kernels.twins import attention as twin
from engine.models.attention import AttentionBatch, KVCacheShape
from tests.engine.kernels.paged_batch import NAN, Batch, Heads, make_batch

# Triton's interpreter makes loop bounds of arrays.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

# Context length and tokens: decodes, whole prompts, chunks at several offsets.
DECODES = [(1, 1), (15, 1), (16, 1), (17, 1), (255, 1)]
MIXED = [(17, 1), (255, 1), (1, 1), (15, 15), (17, 2), (255, 129), (100, 65)]

# Group, head_dim, block_size, window, pieces, whether the cache has 8 bits, keys a tile: every pair
# of values of two of them is in some case.
CASES = [
    (1, 64, 64, 40, 3, False, 64),
    (1, 96, 32, 128, 8, False, 32),
    (1, 128, 16, 1, 3, True, 128),
    (1, 128, 64, 1, 1, True, 128),
    (1, 128, 16, None, 3, True, 32),
    (2, 64, 32, 128, 3, True, 32),
    (2, 96, 16, None, 8, False, 128),
    (2, 96, 64, 40, 1, True, 64),
    (2, 128, 16, 1, 1, True, 32),
    (4, 64, 16, None, 1, True, 128),
    (4, 96, 32, 1, 3, False, 32),
    (4, 128, 32, 40, 8, False, 64),
    (4, 128, 64, 128, 3, False, 64),
    (7, 64, 64, 128, 1, False, 128),
    (7, 64, 32, 1, 8, False, 128),
    (7, 96, 64, None, 3, False, 64),
    (7, 128, 16, 40, 1, True, 32),
    (7, 128, 32, None, 3, True, 128),
    (8, 64, 64, None, 8, True, 32),
    (8, 96, 32, 1, 1, True, 64),
    (8, 96, 16, 128, 3, True, 64),
    (8, 128, 64, 40, 3, False, 128),
]


def compute(batch: Batch, *, keys: int | None = None) -> Tensor:
    """Run the kernels; [num_tokens, num_heads * head_dim] float32, without what pads."""
    with ExitStack() as stack:
        for kernel in ("decode_attention", "prefill_attention") if keys else ():
            launch = {"BLOCK_N": keys, "num_warps": 4, "num_stages": 2}
            stack.enter_context(tuned.trying(kernel, launch))
        out = attention.attend(
            batch.q,
            batch.k_cache,
            batch.v_cache,
            batch.inputs,
            block_size=batch.heads.block_size,
            window=batch.heads.window,
        )
    return out[: batch.num_tokens].float()


def expect(batch: Batch) -> Tensor:
    """Run the twin."""
    out = twin.attend(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.inputs,
        block_size=batch.heads.block_size,
        window=batch.heads.window,
    )
    return out[: batch.num_tokens].float()


@pytest.fixture(autouse=True)
def poisoned_partials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a piece has not written is NaN."""
    make = attention.Partials.empty

    def make_poisoned(q: Tensor, num_pieces: int) -> attention.Partials:
        partials = make(q, num_pieces)
        for tensor in partials.tensors():
            tensor.fill_(NAN)
        return partials

    monkeypatch.setattr(attention.Partials, "empty", make_poisoned)


def check(batch: Batch, out: Tensor) -> None:
    """Compare with the twin; on a GPU the weights of values have 16 bits."""
    allowed = 1e-5 if batch.q.dtype == torch.float32 else 2e-2
    relative = 0 if batch.q.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out, expect(batch), atol=allowed, rtol=relative)


def typed(batch: Batch, *, fp8: bool = False) -> Batch:
    """Give a batch the types that its device computes with, bfloat16 on a GPU."""
    dtype = torch.bfloat16 if batch.q.is_cuda else torch.float32
    cache = torch.float8_e4m3fn if fp8 else dtype
    k_cache, v_cache = batch.k_cache.to(cache), batch.v_cache.to(cache)
    return replace(batch, q=batch.q.to(dtype), k_cache=k_cache, v_cache=v_cache)


@pytest.mark.parametrize(
    ("group", "head_dim", "block_size", "window", "num_pieces", "fp8", "keys"), CASES
)
def test_kernels_equal_their_twin(
    group: int,
    head_dim: int,
    block_size: int,
    window: int | None,
    num_pieces: int,
    fp8: bool,
    keys: int,
    device: torch.device,
) -> None:
    """Decodes, prompts and chunks in one step come out as the twin's, poison all around them."""
    heads = Heads(group=group, head_dim=head_dim, block_size=block_size, window=window)
    batch = typed(make_batch(heads, MIXED, device, num_pieces=num_pieces), fp8=fp8)
    check(batch, compute(batch, keys=keys))


@pytest.mark.parametrize("num_pieces", [1, 2])
def test_decodes_alone_need_no_tiles(num_pieces: int, device: torch.device) -> None:
    """A step of decodes has no tiles, here with two key heads and the launch's own settings."""
    heads = Heads(group=2, num_kv_heads=2)
    batch = typed(make_batch(heads, DECODES, device, num_pieces=num_pieces))
    assert batch.inputs.tiles is None
    check(batch, compute(batch))


def test_prompts_of_two_key_heads(device: torch.device) -> None:
    """Heads of a program share the key head that is theirs, with the launch's own settings."""
    heads = Heads(group=2, num_kv_heads=2, head_dim=96)
    batch = typed(make_batch(heads, [(70, 70), (255, 16)], device))
    check(batch, compute(batch))


def test_tiny_heads_are_padded(device: torch.device) -> None:
    """Heads of 8 are fewer than tensor cores multiply."""
    batch = typed(make_batch(Heads(group=3, head_dim=8), MIXED[:5], device, num_pieces=2))
    check(batch, compute(batch))


def test_bfloat16_is_close(device: torch.device) -> None:
    """Queries, cache and output of 16 bits lose no more than their type does."""
    batch = make_batch(Heads(group=4, num_kv_heads=2), MIXED[:5], device, num_pieces=2)
    q, k, v = (x.bfloat16() for x in (batch.q, batch.k_cache, batch.v_cache))
    batch = replace(batch, q=q, k_cache=k, v_cache=v)
    check(batch, compute(batch))


def test_steps_may_be_all_padding(device: torch.device) -> None:
    """A captured step that is warmed up has no row at all."""
    batch = typed(make_batch(Heads(), [(5, 2)], device))
    rows = torch.full_like(batch.inputs.slots, len(batch.inputs.block_tables) - 1)
    tiles = torch.full_like(batch.inputs.tiles, -1)  # type: ignore[arg-type]
    nothing = torch.zeros_like(batch.inputs.query_starts)
    inputs = replace(
        batch.inputs,
        slots=rows,
        query_starts=nothing,
        context_lens=nothing[:-1],
        tiles=tiles,
        piece_rows=torch.full_like(batch.inputs.piece_rows, -1),
        piece_starts=nothing,
    )
    assert compute(replace(batch, inputs=inputs)).shape == (2, 128)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("num_pieces", [1, 4])
def test_a_fault_stays_one_and_stays_in_its_row(num_pieces: int, device: torch.device) -> None:
    """A row whose context has a NaN gets NaN, in however many pieces, and its neighbours do not."""
    rows = [(40, 1), (255, 1), (30, 30)]
    batch = typed(make_batch(Heads(), rows, device, padding=0, num_pieces=num_pieces))
    slot = int(batch.inputs.slots[1])
    batch.k_cache[int(batch.inputs.block_tables[slot, 8]) * 16 + 3] = NAN
    broken = compute(batch).isnan().any(dim=1).tolist()
    assert broken == [False, True] + [False] * 30


@pytest.mark.parametrize("window", [None, 24])
def test_twin_equals_the_backend_of_the_cpu(window: int | None) -> None:
    """The twin computes what the reference backend does with the same cache."""
    heads = Heads(group=3, num_kv_heads=2, window=window)
    batch = make_batch(heads, MIXED, torch.device("cpu"), padding=0)
    inputs, slots = batch.inputs, batch.inputs.slots.tolist()
    shape = KVCacheShape(
        num_layers=1,
        num_blocks=len(batch.k_cache) // heads.block_size,
        block_size=heads.block_size,
        num_heads=6,
        num_kv_heads=2,
        head_dim=heads.head_dim,
    )
    backend = ReferenceAttention(shape, dtype=torch.float32, device=torch.device("cpu"))
    backend.plan(
        AttentionBatch(
            num_decodes=3,
            positions=inputs.positions.numpy().astype(np.int64),
            query_lens=np.array([tokens for _, tokens in MIXED], dtype=np.int32),
            context_lens=inputs.context_lens.numpy(),
            block_tables=inputs.block_tables.numpy()[slots],
        )
    )
    backend._k_cache[0].copy_(batch.k_cache)
    backend._v_cache[0].copy_(batch.v_cache)
    out = backend.forward(0, batch.q.contiguous(), window=window)
    torch.testing.assert_close(expect(batch), out, atol=1e-5, rtol=0)


def test_a_row_may_have_more_pieces_than_are_combined_at_once(device: torch.device) -> None:
    """A long row beside short ones is combined from forty pieces, most of them of one tile."""
    batch = typed(make_batch(Heads(), [(20, 1), (255, 1)], device))
    rows, starts = [0, *[1] * 40], [0, 1, 41, 41, 41]
    pieces = {"piece_rows": rows, "piece_starts": starts}
    inputs = replace(
        batch.inputs,
        **{n: torch.tensor(v, dtype=torch.int32, device=device) for n, v in pieces.items()},
    )
    check(batch, compute(replace(batch, inputs=inputs), keys=16))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_serves_other_batches(device: torch.device) -> None:
    """What was captured with one batch computes another that is written to the same buffers."""
    heads = Heads(window=50)
    batch = typed(make_batch(heads, [(100, 1), (80, 30)], device, num_pieces=2))
    other = typed(make_batch(heads, [(70, 1), (110, 30)], device, num_pieces=2))
    attention.attend(batch.q, batch.k_cache, batch.v_cache, batch.inputs, block_size=16, window=50)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.attend(
            batch.q,
            batch.k_cache,
            batch.v_cache,
            batch.inputs,
            block_size=16,
            window=50,
        )
    for name in ("q", "k_cache", "v_cache"):
        getattr(batch, name).copy_(getattr(other, name))
    for item in fields(StepInputs):
        getattr(batch.inputs, item.name).copy_(getattr(other.inputs, item.name))
    graph.replay()
    check(other, out[: other.num_tokens].float())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_float32_is_precise_on_a_gpu(device: torch.device) -> None:
    """Tensor cores keep 11 bits of a float32 unless its product is made of three."""
    batch = make_batch(Heads(group=2, head_dim=128), MIXED, device, num_pieces=2)
    out = compute(batch)
    torch.testing.assert_close(out, expect(batch), atol=1e-4, rtol=0)
