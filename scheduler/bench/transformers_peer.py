"""Hugging Face transformers as a peer: the same weights, dtype, threads and process.

It is no dependency of Sluice's: the benches compare with it where it is installed. It is looked
up by name, so that nothing here has to be there for the package to be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def is_installed() -> bool:
    """Tell whether there is a transformers to compare with."""
    return importlib.util.find_spec("transformers") is not None


def save_checkpoint(config: Mapping[str, Any], model_dir: Path, *, seed: int = 0) -> None:
    """Save random weights in the shape of a config.json's content, in its dtype."""
    import torch

    transformers = _transformers()
    fields = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "dtype")}
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **fields),
        dtype=getattr(torch, config["dtype"]),
    )
    model.save_pretrained(model_dir)


class TransformersPeer:
    """Generate greedily with a checkpoint, as one static batch or by continuous batching."""

    def __init__(self, model_dir: Path, *, dtype: str, device: str) -> None:
        import torch

        self._device = torch.device(device)
        model = _transformers().AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=getattr(torch, dtype)
        )
        # Neither ends before the tokens that were asked for.
        model.generation_config.eos_token_id = None
        self._model = model.to(self._device).eval()

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output_tokens: int
    ) -> tuple[float, list[list[int]]]:
        """Run `generate` on prompts of one length; seconds, and the new tokens of each."""
        import torch

        ids = torch.tensor([list(prompt) for prompt in prompts], device=self._device)
        started_s = time.perf_counter()
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_output_tokens,
            pad_token_id=0,
        )
        # The copy to the host waits for the device.
        tokens: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return time.perf_counter() - started_s, tokens

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], num_output_tokens: int, *, warm: bool
    ) -> tuple[float, list[list[int]]]:
        """Run its continuous batching; seconds, and the new tokens of each.

        As its documentation calls it, each call starts a manager and takes most of the memory for
        its cache. With `warm` the manager outlives the call, and its cache is twice the
        workload's; the first such call warms up.
        """
        config = _transformers().GenerationConfig(
            max_new_tokens=num_output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        options: dict[str, Any] = {}
        if warm:
            options["continuous_batching_config"] = _batching_config(prompts, num_output_tokens)
            options["persistent_manager"] = True
        started_s = time.perf_counter()
        outputs = self._model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=config,
            warmup=False,
            progress_bar=False,
            **options,
        )
        elapsed_s = time.perf_counter() - started_s
        # Its dictionary is in the order of ends; the ids are numbered in the order of prompts.
        ordered = sorted(outputs.items(), key=lambda item: int(item[0].rpartition("_")[2]))
        return elapsed_s, [list(output.generated_tokens) for _, output in ordered]

    def stop_batching(self) -> None:
        """Stop the manager that warm calls have left running, if there is one."""
        destroy = getattr(self._model, "destroy_cached_continuous_batching_manager", None)
        if destroy is not None:
            destroy()

    def close(self) -> None:
        """Give back its memory and threads."""
        self.stop_batching()
        del self._model


# Any: its configuration classes are looked up by name.
def _batching_config(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> Any:
    """Size its cache for twice the workload: by itself it would take all memory there is."""
    module = importlib.import_module("transformers.generation.configuration_utils")
    num_tokens = sum(len(prompt) + num_output_tokens for prompt in prompts)
    page_size = 256
    num_blocks = 2 * max(len(prompts), -(-num_tokens // page_size))
    return module.ContinuousBatchingConfig(
        page_size=page_size, num_blocks=num_blocks, max_batch_tokens=2048
    )


def _transformers() -> Any:
    module = importlib.import_module("transformers")
    module.utils.logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    return module
