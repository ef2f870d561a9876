"""What a device holds of a model is read from its weights, not from the model's config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from checkpoints import load, make_tiny_llama
from engine.config import EngineConfig
from engine.gpu.fused_decoder import FusedDecoder
from engine.gpu.kv_cache import KVCache, step_bytes
from engine.kernels.twins import operations as twins
from engine.models.decoder import Decoder, Layer
from engine.models.hf_config import load_model_config
from engine.models.linear import Linear
from engine.sizes import fit
from tests.engine.kernels.paged_batch import Heads, make_batch

CPU = torch.device("cpu")
ROWS = [(20, 1), (33, 33), (40, 7)]


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    make_tiny_llama(tmp_path, num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=1)
    found = load(tmp_path)
    assert isinstance(found, Decoder)
    return found


def half_of(decoder: Decoder, index: int) -> Decoder:
    """Keep the weights of one of two devices: half of the heads, half of the MLP."""
    config = decoder.config
    heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]

    def rows(linear: Linear, sizes: list[int]) -> Linear:
        assert linear.plain is not None
        parts = linear.plain.split(sizes, dim=1)
        return Linear(torch.cat([part.chunk(2, dim=1)[index] for part in parts], dim=1))

    def columns(linear: Linear) -> Linear:
        assert linear.plain is not None
        return Linear(linear.plain.chunk(2, dim=0)[index])

    def half(layer: Layer) -> Layer:
        return replace(
            layer,
            qkv=rows(layer.qkv, [n * config.head_dim for n in heads]),
            out=columns(layer.out),
            gate_up=rows(layer.gate_up, [config.intermediate_size] * 2),
            down=columns(layer.down),
        )

    # A shallow copy: embedding, head and norms are those of both.
    share = Decoder.__new__(Decoder)
    share.__dict__.update(decoder.__dict__, layers=[half(layer) for layer in decoder.layers])
    return share


def make_cache(decoder: Decoder, tmp_path: Path) -> KVCache:
    config = EngineConfig(model_dir=tmp_path, block_size=16, num_blocks=16)
    model = load_model_config(tmp_path)
    sizes = fit(config, model, torch.float32, kv_cache_bytes=0, num_kv_heads=decoder.num_kv_heads)
    cache = KVCache(sizes.kv_cache, dtype=torch.float32, device=CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.zero_()
    return cache


def attend(decoder: Decoder, x: Tensor, tmp_path: Path) -> Tensor:
    """Compute a layer's attention on one device: its part of the sum."""
    heads = Heads(group=2, num_kv_heads=decoder.num_kv_heads, head_dim=decoder.config.head_dim)
    inputs = make_batch(heads, ROWS, CPU, padding=0).inputs
    fused = FusedDecoder(decoder, twins, make_cache(decoder, tmp_path))
    return fused._attend(0, decoder.layers[0], x, inputs)


def test_two_devices_attend_as_one_does(decoder: Decoder, tmp_path: Path) -> None:
    """Half of the heads each, with caches of half the size, add up to the layer's attention."""
    x = torch.randn(sum(n for _, n in ROWS), decoder.config.hidden_size)
    parts = [attend(half_of(decoder, index), x, tmp_path) for index in range(2)]
    torch.testing.assert_close(parts[0] + parts[1], attend(decoder, x, tmp_path))


def test_a_share_of_the_weights_needs_less(decoder: Decoder, tmp_path: Path) -> None:
    """Of half the heads, the same bytes hold twice the blocks, and a step computes in less."""
    half = half_of(decoder, 1)
    assert (decoder.num_kv_heads, half.num_kv_heads) == (4, 2)
    config = EngineConfig(model_dir=tmp_path, block_size=16, max_num_seqs=64)
    sizes = [
        fit(
            config,
            decoder.config,
            torch.float32,
            kv_cache_bytes=1 << 18,
            num_kv_heads=each.num_kv_heads,
        )
        for each in (decoder, half)
    ]
    assert sizes[1].info.num_blocks == 2 * sizes[0].info.num_blocks
    assert sizes[1].kv_cache.num_heads == sizes[0].kv_cache.num_heads // 2
    # What is of hidden states and logits stays as it was.
    whole, part = (step_bytes(each, 100, 0) for each in (decoder, half))
    assert whole / 2 < part < whole
    assert step_bytes(half, 0, 3) == step_bytes(decoder, 0, 3) == 36 * decoder.config.vocab_size
