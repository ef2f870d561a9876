"""The engine that computes with torch: plans in, sampled tokens out.

One thread calls it. Its depth is 1: `launch` computes the step and `collect` hands the result
over, because on a CPU a step launched ahead would only delay the tokens of the one before. The
state table is on the host; what a step needs on the device is uploaded when it is launched.

Failures: a model directory that cannot be served, or sizes that do not fit, raise here, at
construction. A row whose logits are not finite fails alone and its `StepResult` names it. Any
exception out of `launch` is a fault of the step; `reset` makes the engine usable again.
"""

from __future__ import annotations

import os
import time
from array import array
from dataclasses import dataclass

# OpenMP reads this once, when torch loads it. Its threads spin at barriers by default, which on a
# machine shared with a web server costs more than half of the throughput.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention.backend import KVCacheShape
from engine.attention.reference import ReferenceAttention
from engine.config import EngineConfig
from engine.contract import (
    DecodeRows,
    EngineInfo,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
    StepResult,
)
from engine.device_state import DeviceState, StepBatch
from engine.errors import EngineError, ModelError
from engine.models.hf_config import DTYPES, ModelConfig, load_model_config
from engine.models.layers import CausalLM, CausalLMFactory
from engine.models.loader import open_weights
from engine.models.registry import load_model_class
from engine.sampler import sample


class TorchEngine:
    """Implement `engine.contract.Engine` for a Hugging Face directory, on a CPU or a GPU.

    Raises: `ModelError`: the directory cannot be served. `EngineError`: the sizes do not fit, or
    the device is not there. Both in one line.
    """

    def __init__(self, config: EngineConfig) -> None:
        device = _find_device(config.device)
        model_config = load_model_config(config.model_dir)
        sizes = _fit(config, model_config, device)
        _set_threads(config.num_threads)
        self._info = sizes.info
        self._device = device
        self._model = _load_model(config, model_config, sizes.dtype, device)
        self._attention = _allocate_attention(sizes, device)
        self._state = DeviceState(
            max_num_seqs=self._info.max_num_seqs,
            max_model_len=self._info.max_model_len,
            block_size=self._info.block_size,
        )
        self._warm_up()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def launch(self, plan: StepPlan) -> object:
        started_s = time.perf_counter()
        self._state.apply(plan)
        if plan.is_empty:
            return StepResult(plan.step_id, array("i"), array("i"), 0.0)
        batch = self._state.batch(plan)
        token_ids, failed = self._compute(batch)
        slots = batch.slots
        reasons: dict[int, str] = {}
        if failed.any():
            reasons = {int(slot): "the logits are not finite" for slot in slots[failed]}
            slots, token_ids = slots[~failed], token_ids[~failed]
        self._state.append(slots, token_ids)
        return StepResult(
            plan.step_id,
            array("i", slots.tobytes()),
            array("i", token_ids.astype(np.int32).tobytes()),
            time.perf_counter() - started_s,
            failed=reasons,
        )

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepResult), "collect takes what launch returned"
        return handle

    def reset(self) -> None:
        # The cache keeps its bytes: without a table that names them, nothing reads them.
        self._state.clear()

    def close(self) -> None:
        del self._model, self._attention, self._state

    def _compute(self, batch: StepBatch) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Run the model over a batch and draw; ids and failures of the rows that sample."""
        self._attention.plan(batch.attention)
        rows = batch.logit_rows
        logits = self._model.forward(
            torch.from_numpy(batch.token_ids).to(self._device),
            torch.from_numpy(batch.positions).to(self._device),
            self._attention,
            None if rows is None else torch.from_numpy(rows).to(self._device),
        )
        return sample(logits, batch.sampling)

    def _warm_up(self) -> None:
        """Run a prefill and a decode, so that the first request does not pay for first calls."""
        n = min(8, self._info.max_model_len - 1, self._info.max_num_batched_tokens)
        if n < 1:
            return
        params = SamplingParams(max_tokens=2, top_k=2, top_p=0.9)
        sequence = NewSequence(0, "warm-up", array("i", [0] * n), n, 0, (), params)
        prefill = SequenceSlice(0, 0, n, (0,), True)
        self.launch(StepPlan(0, admitted=(sequence,), slices=(prefill,)))
        decodes = DecodeRows()
        decodes.append(0, n)
        self.launch(StepPlan(1, decodes=decodes))
        self.reset()


@dataclass(frozen=True, slots=True)
class _Sizes:
    info: EngineInfo
    kv_cache: KVCacheShape
    dtype: torch.dtype


def _fit(config: EngineConfig, model: ModelConfig, device: torch.device) -> _Sizes:
    """Decide every size, and refuse what does not fit, before anything large is allocated."""
    dtype_name = _choose_dtype(config.dtype, model.dtype, device)
    dtype: torch.dtype = getattr(torch, dtype_name)
    block_size = config.block_size
    max_model_len = min(
        config.max_model_len or model.max_position_embeddings, model.max_position_embeddings
    )
    num_blocks = config.num_blocks
    if num_blocks is None:
        values_per_block = 2 * model.num_layers * model.num_kv_heads * model.head_dim * block_size
        affordable = config.kv_cache_bytes // (values_per_block * dtype.itemsize)
        num_blocks = min(affordable, config.max_num_seqs * -(-max_model_len // block_size))
    if num_blocks < 1:
        raise EngineError("the KV cache holds not one block: raise kv_cache_bytes or num_blocks")
    # A longer sequence could never run, so callers learn the true limit.
    max_model_len = min(max_model_len, num_blocks * block_size)
    if max_model_len < 1:
        raise EngineError(f"max_model_len must be at least 1, not {max_model_len}")
    info = EngineInfo(
        model_type=model.model_type,
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_blocks=num_blocks,
        block_size=block_size,
        eos_token_ids=model.eos_token_ids,
        device=config.device,
        dtype=dtype_name,
    )
    kv_cache = KVCacheShape(
        num_layers=model.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
    )
    return _Sizes(info, kv_cache, dtype)


def _allocate_attention(sizes: _Sizes, device: torch.device) -> ReferenceAttention:
    try:
        return ReferenceAttention(sizes.kv_cache, dtype=sizes.dtype, device=device)
    # torch has no class of its own for a CPU that is out of memory.
    except RuntimeError as error:
        raise EngineError(
            f"a KV cache of {sizes.info.num_blocks} blocks cannot be allocated on {device}; "
            "lower num_blocks or kv_cache_bytes"
        ) from error


def _choose_dtype(asked: str | None, saved: str, device: torch.device) -> str:
    if asked is None:
        # Without matrix units for it, a CPU computes bfloat16 slower than float32.
        return "float32" if device.type == "cpu" else saved
    if asked not in DTYPES:
        raise EngineError(f"dtype {asked!r} is not supported; choose one of {', '.join(DTYPES)}")
    return asked


def _find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise EngineError(f"no device is called {name!r}; choose cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"no CUDA device is there for device {name!r}; choose cpu")
    if device.type not in ("cpu", "cuda"):
        raise EngineError(f"device {name!r} is not supported; choose cpu or cuda")
    return device


def _set_threads(num_threads: int | None) -> None:
    # One core is left to the event loop that lives in this process.
    torch.set_num_threads(num_threads or max(1, (os.cpu_count() or 1) - 1))


def _load_model(
    config: EngineConfig, model_config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> CausalLM:
    factory: CausalLMFactory = load_model_class(model_config.architecture)
    weights = open_weights(
        config.model_dir,
        load_format=config.load_format,
        dtype=dtype,
        device=device,
        seed=config.seed,
    )
    try:
        return factory(model_config, weights)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError(
            f"{config.model_dir}: its weights do not fit into memory as {dtype}; "
            "choose a smaller model or dtype"
        ) from error
