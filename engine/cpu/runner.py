"""The engine on a CPU: plans in, sampled tokens out.

One thread calls it. Its depth is 1: `launch` computes the step and `collect` hands the result
over, because on a CPU a step launched ahead would only delay the tokens of the one before.

Failures: a model directory that cannot be served, or sizes that do not fit, raise here, at
construction. A row that cannot be computed (see `engine.row_faults`), or whose logits are not
finite, fails alone and its `StepResult` names it. `EngineOutOfMemory` out of `launch` says that
the step was too large for the memory there is; any other exception is a fault of the step.
`reset` makes the engine usable again, and proves it with a small step: what that raises is
final.
"""

from __future__ import annotations

import math
import os
import time
from array import array
from dataclasses import dataclass, field

# OpenMP reads this once, when torch loads it. Its threads spin at barriers by default, which on a
# machine shared with a web server costs more than half of the throughput.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.contract import (
    DecodeRows,
    EngineInfo,
    MaskCosts,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from engine.cpu.fitted import allocate_attention, cpu_device, fit_to_cpu, slots_for
from engine.cpu.rounded_kv import RoundedKV
from engine.cpu.slot_table import StepBatch
from engine.models.decoder import Decoder
from engine.models.hf_config import ModelConfig
from engine.models.layers import CausalLM
from engine.models.load import load_decoder, weights_do_not_fit
from engine.native import library
from engine.native.decoder import NativeDecoder
from engine.out_of_memory import told_as_out_of_memory
from engine.probe import lay_out
from engine.row_faults import RowFaults, refuse_failed_proof
from engine.sampling.logprobs import PromptRows, score_tokens
from engine.sampling.mask_maker import MaskMaker
from engine.sampling.sampler import LogitEdits, sample


class TorchEngine:
    """Implement `engine.contract.Engine` for a Hugging Face directory on a CPU.

    Raises: `ModelError`: the directory cannot be served. `EngineError`: the sizes do not fit, or
    no device is called so. Both in one line.
    """

    def __init__(self, config: EngineConfig) -> None:
        fitted = fit_to_cpu(config, cpu_device(config.device))
        self._info = fitted.sizes.info
        self.uses_native = _can_use_native(config, fitted.model, fitted.dtype)
        decoder = load_decoder(config, fitted.model, fitted.dtype, fitted.device)
        _lay_out(decoder, config, native=self.uses_native)
        self._model: CausalLM = NativeDecoder(decoder) if self.uses_native else decoder
        self._attention = allocate_attention(fitted.sizes, native=self.uses_native)
        if config.kv_dtype == "fp8":
            self._attention = RoundedKV(self._attention)
        self._state = slots_for(self._info)
        self._row_faults = RowFaults(vocab_size=self._info.vocab_size)
        # Its thread begins with the first constraint.
        self._mask_maker = MaskMaker()
        # The first request does not pay for first calls.
        self._prove()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def launch(self, plan: StepPlan) -> object:
        with told_as_out_of_memory(plan):
            return self._launch(plan)

    def _launch(self, plan: StepPlan) -> StepResult:
        started_s = time.perf_counter()
        plan, refused = self._row_faults.screen(plan)
        self._state.apply(plan)
        if plan.is_empty:
            return StepResult(plan.step_id, array("i"), array("i"), 0.0, failed=refused)
        batch = self._state.batch(plan)
        drawn = self._compute(batch)
        slots, token_ids, logprobs = batch.slots, drawn.token_ids, drawn.logprobs
        reasons = dict(refused)
        if drawn.failed_slots or drawn.unmet:
            reasons |= dict.fromkeys(drawn.failed_slots, "the logits are not finite")
            reasons |= drawn.unmet
            good = ~np.isin(slots, list(reasons))
            slots, token_ids = slots[good], token_ids[good]
            if logprobs is not None:
                logprobs = [logprobs[row] for row in np.flatnonzero(good)]
        self._state.append(slots, token_ids)
        return StepResult(
            plan.step_id,
            array("i", slots.tobytes()),
            array("i", token_ids.astype(np.int32).tobytes()),
            time.perf_counter() - started_s,
            failed=reasons,
            unmet=tuple(drawn.unmet),
            logprobs=logprobs,
            prompt_logprobs=drawn.prompt_logprobs,
            masks=drawn.masks,
        )

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepResult), "collect takes what launch returned"
        return handle

    def reset(self) -> None:
        self._clear()
        self._prove()

    def close(self) -> None:
        self._mask_maker.close()
        del self._model, self._attention, self._state

    def _compute(self, batch: StepBatch) -> _Drawn:
        """Run the model over a batch and draw."""
        self._attention.plan(batch.attention)
        if batch.masks is not None:
            # Just before the model, which leaves the interpreter to the thread.
            self._mask_maker.begin(batch.masks)
        rows = batch.logit_rows
        logits = self._model.forward(
            torch.from_numpy(batch.token_ids),
            torch.from_numpy(batch.positions),
            self._attention,
            None if rows is None else torch.from_numpy(rows),
        )
        drawn = _Drawn()
        if batch.prompt is not None:
            num_rows = len(batch.slots)
            drawn.score_prompts(logits[num_rows:], batch.prompt, native=self.uses_native)
            logits = logits[:num_rows]
        asked = batch.logprobs
        if asked is not None:
            # A copy: edits change the logits in place, and logprobs are of the model's own.
            raw = logits.index_select(0, torch.from_numpy(asked.rows))
        edits = batch.edits
        if batch.masks is not None:
            edits = LogitEdits.with_masks(edits, batch.masks.take())
        drawn.token_ids, failed = sample(logits, batch.sampling, edits, native=self.uses_native)
        if failed.any():
            drawn.failed_slots += batch.slots[failed].tolist()
        if batch.masks is not None:
            batch.masks.accept(drawn.token_ids, failed)
            bias = None if edits is None else edits.bias
            drawn.unmet = batch.masks.unmet(batch.slots, failed, bias)
            drawn.masks = batch.masks.costs()
        if asked is not None:
            drawn.logprobs = [None] * len(batch.slots)
            token_ids = drawn.token_ids[asked.rows]
            scored = score_tokens(raw, token_ids, asked.num_top, native=self.uses_native)
            for row, logprobs in zip(asked.rows.tolist(), scored, strict=True):
                drawn.logprobs[row] = logprobs
        return drawn

    def _clear(self) -> None:
        # The cache keeps its bytes: without a table that names them, nothing reads them.
        self._state.clear()
        self._row_faults.clear()

    def _prove(self) -> None:
        """Run a prefill and a decode, which raise where nothing can be computed, and forget."""
        n = min(8, self._info.max_model_len - 1, self._info.max_num_batched_tokens)
        if n < 1:
            return
        params = SamplingParams(max_tokens=2, top_k=2, top_p=0.9)
        sequence = NewSequence(0, "warm-up", array("i", [0] * n), n, 0, (), params)
        prefill = SequenceSlice(0, 0, n, (0,), True)
        refuse_failed_proof(
            self.collect(self.launch(StepPlan(0, admitted=(sequence,), slices=(prefill,))))
        )
        decodes = DecodeRows()
        decodes.append(0, n)
        self.launch(StepPlan(1, decodes=decodes))
        self._clear()


@dataclass(slots=True)
class _Drawn:
    """Hold what a step drew and scored; `token_ids` and `logprobs` of all rows that sample."""

    token_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    failed_slots: list[int] = field(default_factory=list)
    # Slot → why nothing was drawn that its constraint allows.
    unmet: dict[int, str] = field(default_factory=dict)
    masks: MaskCosts | None = None
    logprobs: list[TokenLogprobs | None] | None = None
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)

    def score_prompts(self, logits: torch.Tensor, prompt: PromptRows, *, native: bool) -> None:
        scored = score_tokens(logits, prompt.token_ids, prompt.num_top, native=native)
        begin = 0
        for slot, n in zip(prompt.slots, prompt.lens, strict=True):
            logprobs = scored[begin : begin + n]
            begin += n
            self.prompt_logprobs[slot] = logprobs
            if not all(math.isfinite(entry.logprob) for entry in logprobs):
                self.failed_slots.append(slot)


def _can_use_native(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> bool:
    eight_bits = "fp8" in (config.weight_dtype, config.kv_dtype)
    wanted = config.native == "auto" and not eight_bits
    return wanted and NativeDecoder.supports(model, dtype) and library.load()


def _lay_out(decoder: Decoder, config: EngineConfig, *, native: bool) -> None:
    try:
        lay_out(decoder.linears(), native=native)
    except MemoryError as error:
        raise weights_do_not_fit(config, decoder.embedding.dtype) from error
