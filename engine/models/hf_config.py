"""Read a Hugging Face model directory's config.json into the few facts that an engine needs.

Understands the layouts of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5
(`rope_parameters`, `dtype`). What the engine cannot compute faithfully is refused by name, never
ignored. `auto_map` is ignored: no code of a model directory is ever run. Loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.registry import known_architectures

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Describe a decoder: its sizes, its rotary base, its end tokens.

    `dtype` is what the weights were saved in. `eos_token_ids` joins config.json's with
    generation_config.json's.
    """

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    dtype: str
    eos_token_ids: frozenset[int]


def load_model_config(model_dir: Path) -> ModelConfig:
    """Parse `model_dir`/config.json.

    Raises: `ModelError`: the directory or file is missing or malformed, or asks for something
    that this engine does not support; one line that names the file and what to do.
    """
    if not model_dir.is_dir():
        raise ModelError(f"{model_dir}: no such directory; give the path of a Hugging Face model")
    path = model_dir / "config.json"
    fields = _Fields(_read_object(path), path)
    architecture = _architecture(fields)
    _refuse_unsupported(fields)
    num_heads = fields.positive_int("num_attention_heads")
    hidden_size = fields.positive_int("hidden_size")
    config = ModelConfig(
        architecture=architecture,
        model_type=str(fields.get("model_type", "llama")),
        vocab_size=fields.positive_int("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.positive_int("intermediate_size"),
        num_layers=fields.positive_int("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.positive_int("num_key_value_heads", default=num_heads),
        head_dim=fields.positive_int("head_dim", default=max(1, hidden_size // num_heads)),
        max_position_embeddings=fields.positive_int("max_position_embeddings", default=2048),
        rms_norm_eps=fields.positive_number("rms_norm_eps", default=1e-6),
        rope_theta=_rope_theta(fields),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        dtype=_dtype(fields),
        eos_token_ids=_eos_token_ids(fields, model_dir / "generation_config.json"),
    )
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            f"num_attention_heads {config.num_heads} is not a multiple of "
            f"num_key_value_heads {config.num_kv_heads}",
            "correct one of them",
        )
    if config.head_dim % 2:
        raise fields.error(f"head_dim {config.head_dim} is odd", "rotary positions need it even")
    return config


class _Fields:
    """Read typed values out of a JSON object; an explicit null counts as absent."""

    def __init__(self, raw: Mapping[str, Any], path: Path) -> None:
        self._raw = raw
        self.path = path

    def error(self, problem: str, remedy: str) -> ModelError:
        return ModelError(f"{self.path}: {problem}; {remedy}")

    # Any: the values are whatever the JSON held; each reader below checks what it takes.
    def get(self, name: str, default: Any = None) -> Any:
        value = self._raw.get(name)
        return default if value is None else value

    def positive_int(self, name: str, *, default: int | None = None) -> int:
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing", "add it")
        if type(value) is not int or value < 1:
            raise self.error(f"{name} is {_brief(value)}", "it must be a positive integer")
        return value

    def positive_number(self, name: str, *, default: float) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise self.error(f"{name} is {_brief(value)}", "it must be a positive number")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} is {_brief(value)}", "it must be true or false")
        return value

    def object(self, name: str) -> _Fields:
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.error(f"{name} is {_brief(value)}", "it must be an object")
        return _Fields(value, self.path)


def _architecture(fields: _Fields) -> str:
    names = fields.get("architectures")
    known = known_architectures()
    if not isinstance(names, list) or not names:
        raise fields.error("architectures is missing or empty", f"supported: {', '.join(known)}")
    for name in names:
        if name in known:
            return str(name)
    raise fields.error(
        f"architecture {_brief(names[0])} is not supported", f"supported: {', '.join(known)}"
    )


def _refuse_unsupported(fields: _Fields) -> None:
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise fields.error(f"hidden_act {_brief(activation)} is not supported", "supported: silu")
    for name in ("attention_bias", "mlp_bias"):
        if fields.boolean(name, default=False):
            raise fields.error(f"{name} true is not supported", "supported: false")
    if fields.get("quantization_config") is not None:
        raise fields.error(
            "quantization_config is not supported", "use float32, bfloat16 or float16 weights"
        )


def _rope_theta(fields: _Fields) -> float:
    """Find the rotary base; transformers 5 keeps it in `rope_parameters`, 4 beside the rest."""
    parameters = fields.object("rope_parameters")
    for name, rope in (
        ("rope_parameters", parameters),
        ("rope_scaling", fields.object("rope_scaling")),
    ):
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise fields.error(
                f"{name}.rope_type {_brief(rope_type)} is not supported", "supported: default"
            )
    for rope in (parameters, fields):
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise fields.error("partial_rotary_factor is not supported", "supported: 1.0")
    return parameters.positive_number(
        "rope_theta", default=fields.positive_number("rope_theta", default=10000.0)
    )


def _dtype(fields: _Fields) -> str:
    value = fields.get("dtype", fields.get("torch_dtype", "float32"))
    if value not in DTYPES:
        raise fields.error(
            f"dtype {_brief(value)} is not supported", f"supported: {', '.join(DTYPES)}"
        )
    return str(value)


def _eos_token_ids(fields: _Fields, generation_path: Path) -> frozenset[int]:
    sources = [fields]
    if generation_path.exists():
        sources.append(_Fields(_read_object(generation_path), generation_path))
    ids: set[int] = set()
    for source in sources:
        value = source.get("eos_token_id", [])
        values = value if isinstance(value, list) else [value]
        if not all(type(v) is int for v in values):
            raise source.error(
                f"eos_token_id is {_brief(value)}", "it must be an integer or a list of integers"
            )
        ids.update(values)
    return frozenset(ids)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; the directory must hold a model") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); mend it") from error
    # json reports bad syntax and bad UTF-8 as ValueError, absurd nesting as RecursionError.
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not valid JSON; fetch the file again") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: must hold a JSON object; fetch the file again")
    return raw


def _brief(value: object) -> str:
    """Show a value from a file on one short line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
