"""The compiled decoder against its twin, and with how many rows it has oneDNN multiply."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.cpu.attention import ReferenceAttention
from engine.models.attention import AttentionBackend, AttentionBatch, KVCacheShape
from engine.models.decoder import Decoder
from engine.models.hf_config import load_model_config
from engine.models.linear import Layout
from engine.models.load import load_decoder
from engine.native.attention import NativeAttention
from engine.native.decoder import NativeDecoder

FEW, BLOCK_SIZE = 16, 16


@pytest.fixture(scope="module")
def decoder(tiny_llama_dir: Path, native_library: bool) -> Decoder:
    """A model whose products have panels for a few rows, and oneDNN's layout for more."""
    config = EngineConfig(model_dir=tiny_llama_dir)
    model = load_model_config(tiny_llama_dir)
    decoder = load_decoder(config, model, torch.float32, torch.device("cpu"))
    if native_library:
        for linear in decoder.linears():
            linear.few_rows = torch.ops.sluice.few_rows_weight(linear.plain)
            linear.max_few_rows = FEW
            linear.lay_out(Layout.BOTH)
    return decoder


def forward(
    model: Decoder | NativeDecoder,
    attention: AttentionBackend,
    num_tokens: int,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute two prompts and return the logits of `rows`, or of all tokens."""
    lens = np.array([num_tokens // 2, num_tokens - num_tokens // 2], np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int64) for n in lens])
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    tables = np.arange(2 * num_blocks, dtype=np.int32).reshape(2, num_blocks)
    attention.plan(
        AttentionBatch(
            num_decodes=0,
            positions=positions,
            query_lens=lens,
            context_lens=lens,
            block_tables=tables,
        )
    )
    token_ids = torch.arange(num_tokens) * 7 % 128
    return model.forward(token_ids, torch.from_numpy(positions), attention, rows)


def cache_shape(decoder: Decoder) -> KVCacheShape:
    config = decoder.config
    return KVCacheShape(
        num_layers=config.num_layers,
        num_blocks=64,
        block_size=BLOCK_SIZE,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )


@pytest.mark.parametrize("num_tokens", [FEW - 1, FEW, FEW + 1, 24, 25, 131, 256, 257, 300])
def test_any_number_of_tokens_equals_its_twin(
    decoder: Decoder, native_library: bool, num_tokens: int
) -> None:
    """Rows that only fill a product up change no token's logits, and get none themselves."""
    if not native_library:
        return
    shape = cache_shape(decoder)
    native, attention = NativeDecoder(decoder), NativeAttention(shape, dtype=torch.float32)
    # What steps compute in is used again: what a large one leaves must not matter.
    forward(native, attention, 300)
    ours = forward(native, attention, num_tokens)
    reference = ReferenceAttention(shape, dtype=torch.float32, device=torch.device("cpu"))
    twin = forward(decoder, reference, num_tokens)
    assert ours.shape == twin.shape
    torch.testing.assert_close(ours, twin, rtol=1e-4, atol=1e-4)


def test_onednn_sees_few_numbers_of_rows(
    decoder: Decoder, native_library: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sixteen sizes of step are two for oneDNN, which compiles a kernel for each."""
    if not native_library:
        return
    native = NativeDecoder(decoder)
    attention = NativeAttention(cache_shape(decoder), dtype=torch.float32)
    verbose = torch.backends.mkldnn.verbose
    with verbose(torch.backends.mkldnn.VERBOSE_ON):  # type: ignore[no-untyped-call]
        for num_tokens in range(33, 49):
            forward(native, attention, num_tokens, torch.tensor([num_tokens - 1]))
    ctypes.CDLL(None).fflush(None)
    products = re.findall(r",exec,.*inner_product,.*,mb(\d+)ic", capfd.readouterr().out)
    assert set(products) == {"40", "48"}
