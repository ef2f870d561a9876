"""load_model_config: what it reads, and what it refuses by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError
from engine.models.hf_config import load_model_config
from engine.models.registry import known_architectures
from engine.models.rope_config import LinearScaling, Llama3Scaling, RopeConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
SLIDING = {"use_sliding_window": True, "sliding_window": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def write(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return path


def test_a_transformers_5_config_is_read(tmp_path: Path) -> None:
    """`rope_parameters` and `dtype` of transformers 5 are understood."""
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = load_model_config(write(tmp_path, rope_parameters=rope, dtype="bfloat16"))
    assert (config.rope.theta, config.dtype) == (5e5, "bfloat16")
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.max_position_embeddings) == (16, 512)


def test_a_transformers_4_config_is_read(tmp_path: Path) -> None:
    """`rope_theta`, a null `rope_scaling` and `torch_dtype` of transformers 4 are understood."""
    config = load_model_config(
        write(tmp_path, rope_theta=1e6, rope_scaling=None, torch_dtype="float16")
    )
    assert (config.rope.theta, config.dtype) == (1e6, "float16")


def test_what_is_left_out_takes_transformers_defaults(tmp_path: Path) -> None:
    """Fields that old configs omit have the meaning that transformers gives them."""
    config = load_model_config(write(tmp_path, num_key_value_heads=None, rms_norm_eps=None))
    assert (config.num_kv_heads, config.rms_norm_eps) == (4, 1e-6)
    assert (config.rope.theta, config.dtype) == (10000.0, "float32")
    assert config.tie_word_embeddings is False


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_stretched_positions_are_read(tmp_path: Path, key: str) -> None:
    """Either layout yields the same stretch, with the base beside it or within."""
    expected = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
    )
    inside = load_model_config(write(tmp_path, **{key: {**LLAMA3, "rope_theta": 5e5}})).rope
    beside = load_model_config(write(tmp_path, **{key: LLAMA3}, rope_theta=5e5)).rope
    assert inside == beside == RopeConfig(theta=5e5, scaling=expected)


def test_rope_scaling_wins_over_rope_parameters(tmp_path: Path) -> None:
    """As in transformers, which lets a user add `rope_scaling` to any config."""
    linear = {"type": "linear", "factor": 2.0}
    config = load_model_config(write(tmp_path, rope_scaling=linear, rope_parameters=LLAMA3))
    assert config.rope.scaling == LinearScaling(factor=2.0)


@pytest.mark.parametrize(
    ("max_positions", "expected"), [(32768, 131072), (40960, 131072), (262144, 262144)]
)
def test_yarn_stretches_the_context(tmp_path: Path, max_positions: int, expected: int) -> None:
    """Qwen's recipe, YaRN beside an unchanged max_position_embeddings, gives the long context."""
    config = load_model_config(
        write(tmp_path, rope_scaling=YARN, max_position_embeddings=max_positions)
    )
    assert config.max_position_embeddings == expected


def test_linear_and_llama3_leave_the_context_alone(tmp_path: Path) -> None:
    """Their configs state the stretched length themselves."""
    for scaling in ({"type": "linear", "factor": 2.0}, LLAMA3):
        config = load_model_config(write(tmp_path, rope_scaling=scaling))
        assert config.max_position_embeddings == 512


def test_the_original_context_is_the_whole_where_nothing_says_so(tmp_path: Path) -> None:
    """`original_max_position_embeddings` defaults to max_position_embeddings, as elsewhere."""
    scaling = {**LLAMA3, "original_max_position_embeddings": None}
    rope = load_model_config(write(tmp_path, rope_scaling=scaling)).rope
    assert isinstance(rope.scaling, Llama3Scaling)
    assert rope.scaling.original_max_positions == 512


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": 64}, (None, None)),
        ({**MISTRAL, "sliding_window": 64}, (64, 64)),
        ({**MISTRAL, "sliding_window": None}, (None, None)),
        (MISTRAL, (4096, 4096)),
        (QWEN2, (None, None)),
        ({**QWEN2, "sliding_window": 64}, (None, None)),
        ({**QWEN2, **SLIDING}, (None, None)),
        ({**QWEN2, **SLIDING, "max_window_layers": 1}, (None, 64)),
        ({**QWEN3, **SLIDING, "max_window_layers": 0}, (64, 64)),
        ({**QWEN2, **SLIDING, "sliding_window": None}, (None, None)),
        (
            {**QWEN3, **SLIDING, "layer_types": ["sliding_attention", "full_attention"]},
            (64, None),
        ),
    ],
)
def test_windows_by_layer(
    tmp_path: Path, changes: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    """Which layers slide follows the architecture's own rules and defaults."""
    assert load_model_config(write(tmp_path, **changes)).windows == expected


@pytest.mark.parametrize(
    ("changes", "qkv_bias", "out_bias", "mlp_bias", "qk_norm"),
    [
        ({}, False, False, False, False),
        ({"attention_bias": True, "mlp_bias": True}, True, True, True, False),
        (MISTRAL, False, False, False, False),
        (QWEN2, True, False, False, False),
        (QWEN3, False, False, False, True),
        ({**QWEN3, "attention_bias": True}, True, True, False, True),
    ],
)
def test_biases_and_norms_by_architecture(
    tmp_path: Path,
    changes: dict[str, Any],
    qkv_bias: bool,
    out_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
) -> None:
    """Biases and norms of q and k are the architecture's, or config.json's where it asks."""
    config = load_model_config(write(tmp_path, **changes))
    assert (config.qkv_bias, config.out_bias) == (qkv_bias, out_bias)
    assert (config.mlp_bias, config.qk_norm) == (mlp_bias, qk_norm)


@pytest.mark.parametrize("base", [LLAMA, MISTRAL, QWEN2, QWEN3], ids=lambda c: c["model_type"])
def test_defaults_are_those_of_transformers(tmp_path: Path, base: dict[str, Any]) -> None:
    """What a config.json leaves out has the value of that architecture's configuration class."""
    from transformers import AutoConfig

    sizes = {"num_attention_heads": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    raw = {**base, **sizes, "vocab_size": 9, "hidden_size": 2048}
    for name in ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps"):
        raw.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ours, theirs = load_model_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope == RopeConfig(theta=theirs.rope_parameters["rope_theta"])
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64)
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert set(ours.windows) == {getattr(theirs, "sliding_window", None)}


# In the layout that their makers published them in, fields that mean nothing here included.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {**LLAMA3, "factor": 32.0},
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 128256,
    },
    "Mistral-7B-v0.3": {
        "architectures": ["MistralForCausalLM"],
        "attention_dropout": 0.0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 32768,
    },
    "Qwen2.5-0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "eos_token_id": 151643,
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 24,
        "model_type": "qwen2",
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(tmp_path: Path, name: str) -> None:
    """Each family's own config.json is accepted, its sizes and its positions understood."""
    raw = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = load_model_config(tmp_path)
    assert config.architecture == raw["architectures"][0]
    assert config.head_dim == raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    assert config.rope.theta == raw["rope_theta"]
    assert (config.rope.scaling is not None) == name.startswith("Llama")
    assert config.windows == (None,) * raw["num_hidden_layers"]
    assert config.max_position_embeddings == raw["max_position_embeddings"]
    assert (config.qkv_bias, config.qk_norm) == (name.startswith("Qwen2"), name.startswith("Qwen3"))
    assert config.tie_word_embeddings == (not name.startswith("Mistral"))


def test_an_explicit_head_dim_wins(tmp_path: Path) -> None:
    """`head_dim` need not be hidden_size / num_attention_heads."""
    assert load_model_config(write(tmp_path, head_dim=32)).head_dim == 32


@pytest.mark.parametrize(
    ("eos", "generation", "expected"),
    [
        (2, None, {2}),
        ([2, 3], None, {2, 3}),
        (None, None, set()),
        (2, {"eos_token_id": [2, 7]}, {2, 7}),
        (None, {"eos_token_id": 5}, {5}),
        (2, {"temperature": 0.6}, {2}),
    ],
)
def test_end_tokens_are_joined(
    tmp_path: Path, eos: Any, generation: dict[str, Any] | None, expected: set[int]
) -> None:
    """End tokens come as an integer or a list, from config.json and generation_config.json."""
    write(tmp_path, eos_token_id=eos)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert load_model_config(tmp_path).eos_token_ids == expected


def test_auto_map_is_never_run(tmp_path: Path) -> None:
    """Remote code that a config names is neither imported nor run."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    write(tmp_path, auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"})
    assert load_model_config(tmp_path).architecture == "LlamaForCausalLM"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, '"MambaForCausalLM" is not supported'),
        ({"architectures": None}, "architectures is missing"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is missing"),
        ({"hidden_act": "gelu"}, 'hidden_act "gelu" is not supported; supported: silu'),
        ({"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            'type "dynamic" is not supported; supported: default, linear, llama3, yarn',
        ),
        ({"rope_scaling": {"rope_type": "longrope"}}, 'rope_scaling.rope_type "longrope" is not'),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing; add it"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0}}, "rope_scaling.factor is 0; it must"),
        ({"rope_scaling": {**YARN, "truncate": 2}}, "truncate is 2; it must be true or false"),
        ({"rope_parameters": {"rope_type": "mrope"}}, 'rope_parameters.rope_type "mrope" is not'),
        (
            {"rope_parameters": {"rope_type": "llama3", "high_freq_factor": 4.0}},
            "rope_parameters.low_freq_factor is missing",
        ),
        (
            {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
            "high_freq_factor 1.0 is not above low_freq_factor 1.0",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            "rotary positions that differ by layer are not supported",
        ),
        ({"rope_theta": 1.0}, "rope_theta 1.0 is not above 1"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; it must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        (
            {**MISTRAL, "attention_bias": True},
            "attention_bias true is not supported; supported: false for MistralForCausalLM",
        ),
        ({**QWEN3, "mlp_bias": True}, "mlp_bias true is not supported; supported: false for Qwen3"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0; it must be a positive integer"),
        ({**QWEN2, **SLIDING, "max_window_layers": -1}, "max_window_layers is -1"),
        ({**QWEN2, "use_sliding_window": "yes"}, 'use_sliding_window is "yes"; it must be true'),
        (
            {**QWEN3, "layer_types": ["sliding_attention", "full_attention"]},
            "layer_types names sliding_attention, but no window is set",
        ),
        ({**QWEN3, "layer_types": ["full_attention"]}, "layer_types does not name a type for each"),
        (
            {**QWEN3, "layer_types": ["full_attention", "linear_attention"]},
            "layer_types .* is not supported; supported: full_attention, sliding_attention",
        ),
        (
            {**MISTRAL, "layer_types": ["sliding_attention", "full_attention"]},
            "layer_types .* supported: one type for all layers of MistralForCausalLM",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"dtype": "float8_e4m3fn"}, 'dtype "float8_e4m3fn" is not supported'),
        ({"vocab_size": None}, "vocab_size is missing; add it"),
        ({"hidden_size": "64"}, 'hidden_size is "64"; it must be a positive integer'),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is true"),
        ({"rms_norm_eps": "tiny"}, 'rms_norm_eps is "tiny"; it must be a positive number'),
        ({"rope_theta": float("nan")}, "rope_theta is NaN"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"num_key_value_heads": 3}, "is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"eos_token_id": "</s>"}, 'eos_token_id is "</s>"'),
        ({"eos_token_id": [2, 2.5]}, "eos_token_id is"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """A config that the engine cannot obey is refused in a line that names file and field."""
    with pytest.raises(ModelError, match=message) as caught:
        load_model_config(write(tmp_path, **changes))
    assert str(caught.value).startswith(str(tmp_path / "config.json"))
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    """Who brings another architecture is told which are served."""
    with pytest.raises(ModelError) as caught:
        load_model_config(write(tmp_path, architectures=["GPT2LMHeadModel"]))
    assert all(name in str(caught.value) for name in known_architectures())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b'{"architectures": ["Llama', "is not valid JSON"),
        (b"\xff\xfe\x00", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b"null", "must hold a JSON object"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A config.json that is cut off or not an object is refused by name."""
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_model_config(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "config.json"))


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    """The message names generation_config.json when that is the broken one."""
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json: is not valid JSON"):
        load_model_config(tmp_path)


def test_missing_paths_are_named(tmp_path: Path) -> None:
    """A directory that is not there, is a file, or has no config.json is refused by name."""
    with pytest.raises(ModelError, match="no such directory"):
        load_model_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="is empty"):
        load_model_config(tmp_path)
    (tmp_path / "README.md").touch()
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        load_model_config(tmp_path)
    write(tmp_path)
    with pytest.raises(ModelError, match="no such directory"):
        load_model_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 1025),
        ("num_attention_heads", 4097),
        ("hidden_size", 1 << 19),
        ("intermediate_size", 1 << 19),
        ("vocab_size", 1 << 23),
        ("max_position_embeddings", 1 << 25),
        ("head_dim", 1 << 31),
        ("num_key_value_heads", 1 << 40),
    ],
)
def test_sizes_that_no_model_has_are_refused(tmp_path: Path, name: str, value: int) -> None:
    """A size beyond all models is named with the most there is, before anything is allocated."""
    with pytest.raises(ModelError, match=rf"{name} is {value}; it must be at most"):
        load_model_config(write(tmp_path, **{name: value}))
