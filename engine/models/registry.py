"""Which architectures can be served, and what each supports. Loads no torch.

All of them are one decoder, `engine.models.decoder`, in what its config says.
"""

from __future__ import annotations

from engine.models.architecture import ArchitectureInfo, AttentionBias
from engine.models.llama import LLAMA
from engine.models.mistral import MISTRAL
from engine.models.qwen2 import QWEN2
from engine.models.qwen3 import QWEN3
from engine.models.rope_config import ROPE_TYPES

_ARCHITECTURES = {info.name: info for info in (LLAMA, MISTRAL, QWEN2, QWEN3)}


def supported() -> tuple[ArchitectureInfo, ...]:
    """List the architectures that can be served, by name."""
    return tuple(_ARCHITECTURES[name] for name in known_architectures())


def known_architectures() -> tuple[str, ...]:
    """List the names of the architectures that can be served, sorted."""
    return tuple(sorted(_ARCHITECTURES))


def find_architecture(name: str) -> ArchitectureInfo:
    """Return the description of `name`, one of `known_architectures()`."""
    return _ARCHITECTURES[name]


def markdown_table() -> str:
    """Write what is supported as a Markdown table, one architecture a line, for the README."""
    head = ("Architecture", "Models", "Attention bias", "MLP bias", "q/k norm", "Sliding window")
    rows = [head, ("---",) * len(head), *(_table_row(info) for info in supported())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"{table}\n\n"
        "All of them: grouped-query attention, tied embeddings, a `head_dim` of its own, RoPE of "
        f"type {', '.join(f'`{name}`' for name in ROPE_TYPES)}, weights in float32, bfloat16 or "
        "float16."
    )


def _table_row(info: ArchitectureInfo) -> tuple[str, ...]:
    return (
        f"`{info.name}`",
        ", ".join(info.families),
        "always on q, k, v" if info.attention_bias is AttentionBias.QKV else info.attention_bias,
        "by config" if info.mlp_bias else "no",
        "yes" if info.qk_norm else "no",
        info.sliding_window,
    )
