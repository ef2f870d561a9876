"""load_model_config: what it reads, and what it refuses by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError
from engine.models.hf_config import load_model_config
from engine.models.registry import known_architectures

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


def write(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return path


def test_a_transformers_5_config_is_read(tmp_path: Path) -> None:
    """`rope_parameters` and `dtype` of transformers 5 are understood."""
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = load_model_config(write(tmp_path, rope_parameters=rope, dtype="bfloat16"))
    assert (config.rope_theta, config.dtype) == (5e5, "bfloat16")
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.max_position_embeddings) == (16, 512)


def test_a_transformers_4_config_is_read(tmp_path: Path) -> None:
    """`rope_theta`, a null `rope_scaling` and `torch_dtype` of transformers 4 are understood."""
    config = load_model_config(
        write(tmp_path, rope_theta=1e6, rope_scaling=None, torch_dtype="float16")
    )
    assert (config.rope_theta, config.dtype) == (1e6, "float16")


def test_what_is_left_out_takes_transformers_defaults(tmp_path: Path) -> None:
    """Fields that old configs omit have the meaning that transformers gives them."""
    config = load_model_config(write(tmp_path, num_key_value_heads=None, rms_norm_eps=None))
    assert (config.num_kv_heads, config.rms_norm_eps) == (4, 1e-6)
    assert (config.rope_theta, config.dtype) == (10000.0, "float32")
    assert config.tie_word_embeddings is False


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
        ({"attention_bias": True}, "attention_bias true is not supported"),
        ({"mlp_bias": True}, "mlp_bias true is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 'rope_type "linear"'),
        ({"rope_scaling": {"rope_type": "yarn"}}, "supported: default"),
        ({"rope_parameters": {"rope_type": "llama3"}}, 'rope_parameters.rope_type "llama3"'),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; it must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
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
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        load_model_config(tmp_path)
    write(tmp_path)
    with pytest.raises(ModelError, match="no such directory"):
        load_model_config(tmp_path / "config.json")
