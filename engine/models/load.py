"""Loads the decoder of a model directory, on any device."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.models.decoder import Decoder
from engine.models.hf_config import ModelConfig
from engine.models.loader import open_weights
from engine.models.quantization import quantize_linears, refuse_fp8_without_units


def load_decoder(
    config: EngineConfig, model_config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """Build a model with its weights, in 8 bits where the config says so.

    Raises: `ModelError`: they cannot be read, or do not fit. `EngineError`: the device, or a size,
    is none for 8 bits.
    """
    refuse_fp8_without_units(config, device)
    weights = open_weights(
        config.model_dir,
        load_format=config.load_format,
        dtype=dtype,
        device=device,
        seed=config.seed,
    )
    try:
        decoder = Decoder(model_config, weights)
        if config.weight_dtype == "fp8":
            quantize_linears(decoder)
        return decoder
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise weights_do_not_fit(config, dtype) from error


def weights_do_not_fit(config: EngineConfig, dtype: torch.dtype) -> ModelError:
    """Say so."""
    return ModelError(
        f"{config.model_dir}: its weights do not fit into memory as {dtype}; "
        "choose a smaller model or dtype"
    )
