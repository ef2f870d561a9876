"""Hugging Face transformers as a peer: the same weights, dtype, threads and process.

It is no dependency of Sluice's: the benches compare with it where it is installed. It is looked
up by name, so that nothing here has to be there for the package to be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.bench.drive import BenchError

_PAGE_SIZE = 256
# Of the workload, in hundredths.
_ROOM = 125


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
        """Run `generate` on prompts of one length; seconds, and the new tokens of each.

        Raises: `BenchError`: they are not as many as were asked for.
        """
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
        elapsed_s = time.perf_counter() - started_s
        _check(tokens, len(prompts), num_output_tokens)
        return elapsed_s, tokens

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], num_output_tokens: int, *, warm: bool
    ) -> tuple[float, list[list[int]]]:
        """Run its continuous batching; seconds, and the new tokens of each.

        As its documentation calls it, each call starts a manager and takes most of the memory for
        its cache. With `warm` the manager outlives the call, and its cache is the
        workload's and some room; the first such call warms up. Raises: `BenchError`: a request
        failed, or has fewer tokens than were asked for; transformers says so in its log alone.
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
        # Its dictionary may be in the order of ends; the ids are numbered in that of prompts.
        ordered = sorted(outputs.items(), key=lambda item: int(item[0].rpartition("_")[2]))
        for name, answer in ordered:
            if answer.error is not None:
                raise BenchError(f"transformers failed at {name}: {answer.error}")
        tokens = [list(answer.generated_tokens) for _, answer in ordered]
        _check(tokens, len(prompts), num_output_tokens)
        return elapsed_s, tokens

    def stop_batching(self) -> None:
        """Stop the manager that warm calls have left running, if there is one."""
        destroy = getattr(self._model, "destroy_cached_continuous_batching_manager", None)
        if destroy is not None:
            destroy()

    def close(self) -> None:
        """Give back its memory and threads."""
        self.stop_batching()
        del self._model


def _check(tokens: Sequence[Sequence[int]], num_requests: int, num_output_tokens: int) -> None:
    """Refuse a batch that is not whole: its time would be no result."""
    if len(tokens) != num_requests:
        raise BenchError(f"transformers answered {len(tokens)} of {num_requests} requests")
    for found in map(len, tokens):
        if found != num_output_tokens:
            raise BenchError(f"transformers gave a request {found} of {num_output_tokens} tokens")


# Any: its configuration classes are looked up by name.
def _batching_config(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> Any:
    """Size its cache for the workload and room: by itself it would take all memory there is."""
    module = importlib.import_module("transformers.generation.configuration_utils")
    num_tokens = sum(len(prompt) + num_output_tokens for prompt in prompts)
    # Each request ends in a page that is not full.
    num_blocks = len(prompts) + -(-_ROOM * num_tokens // (100 * _PAGE_SIZE))
    return module.ContinuousBatchingConfig(
        **page_size_option(module.ContinuousBatchingConfig),
        num_blocks=num_blocks,
        max_batch_tokens=2048,
    )


def page_size_option(config_class: type) -> dict[str, int]:
    """Say the tokens of a page in the word of this version: it was `block_size` up to 5.17."""
    names = inspect.signature(config_class).parameters
    return {"page_size" if "page_size" in names else "block_size": _PAGE_SIZE}


def _transformers() -> Any:
    module = importlib.import_module("transformers")
    module.utils.logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    return module
