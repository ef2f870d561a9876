"""What 8 bits cost: how far next-token distributions move from those of bfloat16.

The measure is the Kullback-Leibler divergence from the bfloat16 model's distribution after each
token of a prompt, in nats, and how often the likeliest token is the same. The demo model is a
trained one; the other shapes have random weights, whose distributions are flat, so that their
figures tell the arithmetic's error and not what it would do to a trained model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.cpu.attention import ReferenceAttention
from engine.cpu.rounded_kv import RoundedKV
from engine.demo import MODEL_DIR
from engine.models.attention import AttentionBackend, AttentionBatch, KVCacheShape
from engine.models.decoder import Decoder
from engine.models.hf_config import ModelConfig, load_model_config
from engine.models.load import load_decoder
from engine.sizes import find_device
from engine.text import Tokenizer
from scheduler.bench.part import Part, Row, grow
from scheduler.bench.report import Figure
from scheduler.bench.setup import give_memory_back
from tests.gpu.asked import Asked
from tests.gpu.shapes import model_directory

_BLOCK_SIZE = 16
_NUM_TOKENS = 512
_README = Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True, slots=True)
class _Variant:
    weights: bool
    kv: bool

    @property
    def name(self) -> str:
        return "both" if self.weights and self.kv else "weights" if self.weights else "kv"


_VARIANTS = (_Variant(True, False), _Variant(False, True), _Variant(True, True))


def run(asked: Asked, model: str) -> Iterator[tuple[str, Part]]:
    """Measure a model in one variant after another, on the same prompts each."""
    for part in grow(_measure(asked, model)):
        yield f"quality {model}", part


def _measure(asked: Asked, model: str) -> Iterator[Part]:
    part = Part()
    with _directory(model) as directory:
        prompts = _prompts(model, directory, 2 if asked.quick else 8)
        expected = _logits(asked, directory, prompts, _Variant(False, False))
        for variant in _VARIANTS:
            give_memory_back(asked.device)
            found = _logits(asked, directory, prompts, variant)
            _compare(model, variant, expected, found, part)
            yield part


def divergence(expected: Tensor, found: Tensor) -> Tensor:
    """Return KL(expected ‖ found) of each row's distribution, in nats; [n, vocab_size] → [n]."""
    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (expected, found))
    return (p.exp() * (p - q)).sum(dim=-1)


def _compare(
    model: str, variant: _Variant, expected: list[Tensor], found: list[Tensor], part: Part
) -> None:
    pairs = list(zip(expected, found, strict=True))
    kl = torch.cat([divergence(*pair) for pair in pairs])
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs]).double()
    name = f"quality_{model.replace('-', '_').replace('.', '_')}_fp8_{variant.name}"
    part.figures |= {
        f"{name}_mean_kl": Figure(float(kl.mean()), "nats"),
        f"{name}_same_token_share": Figure(float(same.mean()), "share"),
    }
    part.samples[name] = {"tokens": len(kl), "kl_p99": float(kl.quantile(0.99))}
    note = f"KL {float(kl.mean()):.2g}, the same token {float(same.mean()):.1%}"
    part.rows.append(Row(f"{model}: fp8 {variant.name}", None, note=note))


@torch.inference_mode()
def _logits(
    asked: Asked, directory: Path, prompts: list[list[int]], variant: _Variant
) -> list[Tensor]:
    """Compute the logits after every token of each prompt, on the host; [n, vocab_size] each."""
    config = EngineConfig(
        model_dir=directory,
        load_format="auto" if directory == MODEL_DIR else "dummy",
        device=asked.device,
        weight_dtype="fp8" if variant.weights else None,
        kv_dtype="fp8" if variant.kv else None,
    )
    model_config = load_model_config(directory)
    device = find_device(asked.device)
    decoder = load_decoder(config, model_config, torch.bfloat16, device)
    attention: AttentionBackend = ReferenceAttention(
        _cache_shape(model_config), dtype=torch.bfloat16, device=device
    )
    if variant.kv:
        attention = RoundedKV(attention)
    return [_forward(decoder, attention, prompt, device) for prompt in prompts]


def _forward(
    decoder: Decoder, attention: AttentionBackend, prompt: list[int], device: torch.device
) -> Tensor:
    n = len(prompt)
    positions = np.arange(n)
    attention.plan(
        AttentionBatch(
            num_decodes=0,
            positions=positions,
            query_lens=np.array([n], np.int32),
            context_lens=np.array([n], np.int32),
            block_tables=np.arange(_NUM_TOKENS // _BLOCK_SIZE, dtype=np.int32)[None],
        )
    )
    tokens = torch.tensor(prompt, device=device)
    logits = decoder.forward(tokens, torch.from_numpy(positions).to(device), attention, None)
    # The next forward writes where these are.
    return logits.cpu().clone()


def _cache_shape(config: ModelConfig) -> KVCacheShape:
    return KVCacheShape(
        num_layers=config.num_layers,
        num_blocks=_NUM_TOKENS // _BLOCK_SIZE,
        block_size=_BLOCK_SIZE,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )


@contextmanager
def _directory(model: str) -> Iterator[Path]:
    if model == "demo":
        yield MODEL_DIR
        return
    with model_directory(model) as directory:
        yield directory


def _prompts(model: str, directory: Path, count: int) -> list[list[int]]:
    """Cut prompts from the README for the demo; draw them for a model without a vocabulary."""
    length = _NUM_TOKENS // 4
    if model == "demo":
        token_ids = list(Tokenizer.from_dir(directory).encode(_README.read_text("utf-8")))
        starts = [i * length for i in range(min(count, len(token_ids) // length))]
        return [token_ids[start : start + length] for start in starts]
    draw = random.Random(3)
    vocab_size = load_model_config(directory).vocab_size
    return [[draw.randrange(vocab_size) for _ in range(length)] for _ in range(count)]
