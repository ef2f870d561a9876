"""What of `generation_config.json` requests are sampled by, and what of it ends a start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.contract import Capability, SamplingParams
from engine.errors import ModelError
from engine.generation_config import SamplingDefaults, read_sampling_defaults
from engine.simulated import SimulatedEngine
from engine.step_cost import load_profile

QWEN3 = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}


def write(path: Path, text: str) -> Path:
    (path / "generation_config.json").write_text(text)
    return path


def test_a_recipe_is_read_by_its_fields(tmp_path: Path) -> None:
    """Qwen3's file gives temperature, top_p and top_k; what it does not name is off."""
    defaults = read_sampling_defaults(write(tmp_path, json.dumps(QWEN3)))
    assert defaults == SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20)
    assert defaults.chosen() == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


@pytest.mark.parametrize("content", [None, "{}", '{"temperature": null, "top_k": -1}'])
def test_what_is_not_said_is_plain(tmp_path: Path, content: str | None) -> None:
    """No file, an empty one and nulls mean plain sampling; so does a `top_k` of -1."""
    if content is not None:
        write(tmp_path, content)
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()
    assert SamplingDefaults().chosen() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "NaN"),
        ("temperature", "-0.1"),
        ("temperature", "1e999"),
        ("temperature", '"0.6"'),
        ("temperature", "true"),
        ("temperature", "[0.6]"),
        ("top_p", "1.1"),
        ("top_p", "NaN"),
        ("min_p", "-1"),
        ("repetition_penalty", "0"),
        ("repetition_penalty", "-Infinity"),
        ("top_k", "20.5"),
        ("top_k", "-2"),
        ("top_k", "9" * 400),
        ("max_new_tokens", "0"),
        ("max_new_tokens", '"all"'),
        ("max_new_tokens", "1" + "0" * 30),
    ],
)
def test_a_value_that_no_request_could_ask_for_ends_the_start(
    tmp_path: Path, name: str, value: str
) -> None:
    """One short line names the file, the field, what it must be, and the way past it."""
    with pytest.raises(ModelError) as caught:
        read_sampling_defaults(write(tmp_path, f'{{"{name}": {value}}}'))
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'generation_config.json'}: {name} is ")
    assert "it must be a" in said
    assert said.endswith("(--generation-config none)")
    assert len(said) < len(str(tmp_path)) + 300


def test_what_an_engine_cannot_do_is_left_out() -> None:
    """A penalty that nobody asked for refuses no request, nor a `top_k` of more than all."""
    info = SimulatedEngine(
        load_profile("cpu-demo"),
        vocab_size=100,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_blocks=8,
        block_size=16,
    ).info
    defaults = SamplingDefaults(top_k=1000, repetition_penalty=1.1)
    assert defaults.fitted(info) == SamplingDefaults(top_k=100)
    able = replace(info, capabilities=frozenset({Capability.PENALTIES}))
    assert defaults.fitted(able).repetition_penalty == 1.1


def test_an_empty_nucleus_is_greedy() -> None:
    """A `top_p` of 0 leaves the likeliest token alone, which engines know as temperature 0."""
    params = SamplingDefaults(top_p=0.0, temperature=0.7).params(16)
    assert params == SamplingParams(max_tokens=16, temperature=0.0)
