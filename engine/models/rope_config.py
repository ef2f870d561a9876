"""Read which rotary positions a model uses, from either layout of config.json.

transformers 5 keeps everything in `rope_parameters`; 4 has `rope_theta` beside the other fields
and what stretches the context in `rope_scaling`, which wins where both are there. Loads no torch.

`dynamic` and `longrope` are refused: their frequencies depend on the length of the sequence, so
keys that are cached already would have to be rotated again whenever it grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.models.config_fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Stretch all positions by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Stretch slow rotations by `factor`, leave fast ones, and blend those in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """Stretch slow rotations by `factor`, blend by dimension; scale cosines and sines as well.

    `attention_factor` multiplies both. `truncate` rounds the borders of the blend outwards.
    """

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Give the base of the rotations and how they are stretched to a longer context."""

    theta: float
    scaling: RopeScaling | None = None


def read_rope(fields: Fields, max_positions: int) -> RopeConfig:
    """Read the rotary positions of the config.json `fields`.

    Args: `max_positions`: what `original_max_position_embeddings` is where nothing says so.
    Raises: `ModelError`: of a type that is not supported, or not well formed.
    """
    rope = fields.section("rope_scaling")
    if not rope.values():
        rope = fields.section("rope_parameters")
    if any(isinstance(value, dict) for value in rope.values().values()):
        raise fields.error(
            "rotary positions that differ by layer are not supported", "supported: one for all"
        )
    for source in (rope, fields):
        if source.get("partial_rotary_factor", 1.0) != 1.0:
            raise source.unsupported("partial_rotary_factor", "1.0")
    theta = rope.positive_number(
        "rope_theta", default=fields.positive_number("rope_theta", default=10000.0)
    )
    original = fields.positive_int(
        "original_max_position_embeddings",
        default=rope.positive_int("original_max_position_embeddings", default=max_positions),
    )
    if theta <= 1:
        raise fields.error(f"rope_theta {theta} is not above 1", "correct it")
    return RopeConfig(theta=theta, scaling=_scaling(rope, original))


def _scaling(rope: Fields, original_max_positions: int) -> RopeScaling | None:
    # transformers 4 wrote `type` before it wrote `rope_type`.
    key = "rope_type" if rope.get("rope_type") is not None else "type"
    match rope.get(key, "default"):
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=rope.positive_number("factor"))
        case "llama3":
            return _llama3(rope, original_max_positions)
        case "yarn":
            return _yarn(rope, original_max_positions)
    raise rope.unsupported(key, ", ".join(ROPE_TYPES))


def _llama3(rope: Fields, original_max_positions: int) -> Llama3Scaling:
    low = rope.positive_number("low_freq_factor")
    high = rope.positive_number("high_freq_factor")
    if high <= low:
        raise rope.error(
            f"high_freq_factor {high} is not above low_freq_factor {low}", "correct one of them"
        )
    return Llama3Scaling(
        factor=rope.positive_number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=original_max_positions,
    )


def _yarn(rope: Fields, original_max_positions: int) -> YarnScaling:
    factor = rope.positive_number("factor")
    return YarnScaling(
        factor=factor,
        original_max_positions=original_max_positions,
        attention_factor=rope.positive_number(
            "attention_factor", default=_yarn_attention_factor(rope, factor)
        ),
        beta_fast=rope.positive_number("beta_fast", default=32),
        beta_slow=rope.positive_number("beta_slow", default=1),
        truncate=rope.boolean("truncate", default=True),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    """Infer what cosines and sines are multiplied by, where the config does not say."""
    if not (rope.get("mscale") and rope.get("mscale_all_dim")):
        return _magnitude(factor, 1.0)
    above = _magnitude(factor, rope.positive_number("mscale"))
    return above / _magnitude(factor, rope.positive_number("mscale_all_dim"))


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
