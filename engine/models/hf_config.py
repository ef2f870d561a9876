"""Read a Hugging Face model directory's config.json into the few facts that an engine needs.

Understands the layouts of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5
(`rope_parameters`, `dtype`). What the engine cannot compute faithfully is refused by name, never
ignored. `auto_map` is ignored: no code of a model directory is ever run. Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.model_dir import check_model_dir
from engine.models.architecture import ArchitectureInfo, AttentionBias, SlidingWindow
from engine.models.config_fields import Fields, brief, read_object
from engine.models.registry import find_architecture, known_architectures
from engine.models.rope_config import RopeConfig, YarnScaling, read_rope

DTYPES = ("float32", "bfloat16", "float16")

# Each several times what the largest public model has.
_LAYERS_MOST, _WIDTH_MOST, _HEADS_MOST = 1024, 1 << 18, 4096
_VOCABULARY_MOST, _POSITIONS_MOST = 1 << 22, 1 << 24

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Describe a decoder: its sizes, its variations, its end tokens.

    `windows` has, for each layer, how many of the newest tokens a token sees, itself included;
    None is all. `max_position_embeddings` is the longest context that the model was made for,
    stretched positions included. `dtype` is what the weights were saved in. `eos_token_ids`
    joins config.json's with generation_config.json's.
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
    rope: RopeConfig
    windows: tuple[int | None, ...]
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    dtype: str
    eos_token_ids: frozenset[int]


def load_model_config(model_dir: Path, *, is_headless: bool = False) -> ModelConfig:
    """Parse `model_dir`/config.json.

    One that `is_headless` may be saved without its head, as `Qwen3Model`, and has none here.

    Raises: `ModelError`: the directory or file is missing or malformed, or asks for something
    that this engine does not support; one line that names the file and what to do.
    """
    check_model_dir(model_dir)
    fields = read_object(model_dir / "config.json")
    info = _architecture(fields, is_headless=is_headless)
    fields = fields.with_defaults(info.defaults)
    _refuse_unsupported(fields)
    num_heads = fields.positive_int("num_attention_heads", most=_HEADS_MOST)
    num_layers = fields.positive_int("num_hidden_layers", most=_LAYERS_MOST)
    hidden_size = fields.positive_int("hidden_size", most=_WIDTH_MOST)
    qkv_bias, out_bias = _attention_bias(fields, info)
    max_positions = fields.positive_int("max_position_embeddings", most=_POSITIONS_MOST)
    rope = read_rope(fields, max_positions)
    if isinstance(rope.scaling, YarnScaling):
        # Qwen's recipe for a long context adds YaRN and leaves max_position_embeddings as it was.
        stretched = int(rope.scaling.factor * rope.scaling.original_max_positions)
        max_positions = max(max_positions, stretched)
    config = ModelConfig(
        architecture=info.name,
        model_type=str(fields.get("model_type", info.model_type)),
        vocab_size=fields.positive_int("vocab_size", most=_VOCABULARY_MOST),
        hidden_size=hidden_size,
        intermediate_size=fields.positive_int("intermediate_size", most=_WIDTH_MOST),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.positive_int("num_key_value_heads", default=num_heads),
        head_dim=fields.positive_int("head_dim", default=max(1, hidden_size // num_heads)),
        max_position_embeddings=max_positions,
        rms_norm_eps=fields.positive_number("rms_norm_eps", default=1e-6),
        rope=rope,
        windows=_windows(fields, info, num_layers),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=_mlp_bias(fields, info),
        qk_norm=info.qk_norm,
        # A head that is tied has no weights of its own.
        tie_word_embeddings=is_headless or fields.boolean("tie_word_embeddings", default=False),
        dtype=_dtype(fields),
        eos_token_ids=_eos_token_ids(fields, model_dir / "generation_config.json"),
    )
    _check_heads(config, fields)
    return config


def _architecture(fields: Fields, *, is_headless: bool) -> ArchitectureInfo:
    names = fields.get("architectures")
    known = known_architectures()
    if not isinstance(names, list) or not names:
        raise fields.error("architectures is missing or empty", f"supported: {', '.join(known)}")
    for name in names:
        if is_headless and isinstance(name, str) and name.endswith("Model"):
            name = f"{name.removesuffix('Model')}ForCausalLM"
        if name in known:
            return find_architecture(name)
    raise fields.error(
        f"architecture {brief(names[0])} is not supported", f"supported: {', '.join(known)}"
    )


def _refuse_unsupported(fields: Fields) -> None:
    if fields.get("hidden_act", "silu") != "silu":
        raise fields.unsupported("hidden_act", "silu")
    if fields.get("quantization_config") is not None:
        raise fields.error(
            "quantization_config is not supported", "use float32, bfloat16 or float16 weights"
        )


def _attention_bias(fields: Fields, info: ArchitectureInfo) -> tuple[bool, bool]:
    """Say whether q, k and v have a bias, and whether the output projection has one."""
    asked = fields.boolean("attention_bias", default=False)
    match info.attention_bias:
        case AttentionBias.BY_CONFIG:
            return asked, asked
        case AttentionBias.QKV:
            return True, False
        case AttentionBias.NEVER:
            if asked:
                raise fields.unsupported("attention_bias", f"false for {info.name}")
            return False, False


def _mlp_bias(fields: Fields, info: ArchitectureInfo) -> bool:
    asked = fields.boolean("mlp_bias", default=False)
    if asked and not info.mlp_bias:
        raise fields.unsupported("mlp_bias", f"false for {info.name}")
    return asked


def _windows(fields: Fields, info: ArchitectureInfo, num_layers: int) -> tuple[int | None, ...]:
    """Find how many tokens each layer sees; None is all."""
    window = _window_size(fields, info)
    first = 0
    if window is not None and info.sliding_window is SlidingWindow.BY_LAYER:
        first = fields.get("max_window_layers")
        if type(first) is not int or first < 0:
            raise fields.error(
                f"max_window_layers is {brief(first)}", "it must be an integer from 0 up"
            )
    slides = [window is not None and layer >= first for layer in range(num_layers)]
    types = fields.get("layer_types")
    if types is None:
        return tuple(window if sliding else None for sliding in slides)
    if not isinstance(types, list) or len(types) != num_layers:
        raise fields.error("layer_types does not name a type for each layer", "correct it")
    if any(name not in (_FULL, _SLIDING) for name in types):
        raise fields.unsupported("layer_types", f"{_FULL}, {_SLIDING}")
    named = [name == _SLIDING for name in types]
    if info.sliding_window is not SlidingWindow.BY_LAYER and named != slides:
        raise fields.unsupported("layer_types", f"one type for all layers of {info.name}")
    if any(named) and window is None:
        raise fields.error(f"layer_types names {_SLIDING}, but no window is set", "correct it")
    return tuple(window if sliding else None for sliding in named)


def _window_size(fields: Fields, info: ArchitectureInfo) -> int | None:
    if info.sliding_window is SlidingWindow.NEVER or fields.get("sliding_window") is None:
        return None
    by_layer = info.sliding_window is SlidingWindow.BY_LAYER
    if by_layer and not fields.boolean("use_sliding_window", default=False):
        return None
    return fields.positive_int("sliding_window")


def _dtype(fields: Fields) -> str:
    value = fields.get("dtype", fields.get("torch_dtype", "float32"))
    if value not in DTYPES:
        raise fields.error(
            f"dtype {brief(value)} is not supported", f"supported: {', '.join(DTYPES)}"
        )
    return str(value)


def _eos_token_ids(fields: Fields, generation_path: Path) -> frozenset[int]:
    sources = [fields]
    if generation_path.exists():
        sources.append(read_object(generation_path))
    ids: set[int] = set()
    for source in sources:
        value = source.get("eos_token_id", [])
        values = value if isinstance(value, list) else [value]
        if not all(type(v) is int for v in values):
            raise source.error(
                f"eos_token_id is {brief(value)}", "it must be an integer or a list of integers"
            )
        ids.update(values)
    return frozenset(ids)


def _check_heads(config: ModelConfig, fields: Fields) -> None:
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            f"num_attention_heads {config.num_heads} is not a multiple of "
            f"num_key_value_heads {config.num_kv_heads}",
            "correct one of them",
        )
    if config.head_dim % 2:
        raise fields.error(f"head_dim {config.head_dim} is odd", "rotary positions need it even")
