"""The shapes that the GPU benches measure are those of the public models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.hf_config import load_model_config
from tests.gpu.shapes import MODELS, config_path

# From the models' own pages, embeddings included; a head that is tied counts once.
PARAMETERS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
}


class CountingWeights:
    """Hand out tensors without memory, and count their elements."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, name: str, *shape: int) -> Tensor:
        self.count += math.prod(shape)
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    def refuse_rest_of(self, prefix: str) -> None:
        """What is asked for is all there is."""


@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_those_of_the_public_model(tmp_path: Path, model: str) -> None:
    """A config makes the architecture's decoder with as many parameters as the model has."""
    (tmp_path / "config.json").write_bytes(config_path(model).read_bytes())
    config = load_model_config(tmp_path)
    assert config.dtype == "bfloat16"
    weights = CountingWeights()
    Decoder(config, weights)
    assert weights.count == PARAMETERS[model]
