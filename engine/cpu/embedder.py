"""The engine of an embedding model on a CPU: plans in, vectors out.

It is the engine of `engine.cpu.runner` without what comes after the last hidden states: no head, no
logits, nothing is drawn. A slice that samples ends its sequence's prompt, and with it comes the
vector: the last token's hidden state, or the mean of all, which is summed chunk by chunk in
float64, so that it is the same however a prompt was cut. It has a length of 1.

Depth, threads and failures are as of that engine; a vector that is not finite fails its row alone.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace

# See `engine.cpu.runner`, which sets it too.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.contract import (
    Capability,
    EngineInfo,
    NewSequence,
    Pooling,
    SamplingParams,
    SequenceSlice,
    StepPlan,
    StepResult,
)
from engine.cpu.fitted import allocate_attention, cpu_device, fit_to_cpu, slots_for
from engine.cpu.slot_table import StepBatch
from engine.models.load import load_decoder
from engine.native import library
from engine.native.decoder import NativeDecoder
from engine.out_of_memory import told_as_out_of_memory
from engine.probe import lay_out
from engine.row_faults import RowFaults, refuse_failed_proof

Vector = NDArray[np.float64]
# A vector of nothing has no direction to keep.
_LEAST_LENGTH = 1e-12


class EmbeddingEngine:
    """Implement `engine.contract.Engine` for an embedding model's Hugging Face directory.

    Raises: `ModelError`: the directory cannot be served. `EngineError`: the sizes do not fit.
    """

    def __init__(self, config: EngineConfig) -> None:
        assert config.pooling is not None, "what does not pool is for `engine.cpu.runner`"
        self._pooling = config.pooling
        fitted = fit_to_cpu(config, cpu_device(), is_headless=True)
        self._info = replace(
            fitted.sizes.info,
            capabilities=frozenset({Capability.POOLING}),
            max_num_prompt_logprobs=0,
            pooling=config.pooling,
            embedding_size=fitted.model.hidden_size,
        )
        self._model = load_decoder(config, fitted.model, fitted.dtype, fitted.device)
        lay_out([one for one in self._model.linears() if one is not self._model.head], native=False)
        is_native = config.native == "auto" and NativeDecoder.supports(fitted.model, fitted.dtype)
        self._attention = allocate_attention(fitted.sizes, native=is_native and library.load())
        self._state = slots_for(self._info)
        # By slot, of what was computed of its prompt: where the mean is asked for.
        self._sums: dict[int, Vector] = {}
        self._row_faults = RowFaults(vocab_size=self._info.vocab_size)
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
        assert not len(plan.decodes), "what pools draws nothing to go on from"
        self._state.apply(plan)
        for slot in (*plan.released, *(sequence.slot for sequence in plan.admitted)):
            self._sums.pop(slot, None)
        none: array[int] = array("i")
        if plan.is_empty:
            return StepResult(plan.step_id, none, none, 0.0, failed=refused)
        batch = self._state.batch(plan)
        pooled: dict[int, array[float]] = {}
        failed = dict(refused)
        for slot, vector in self._pool(plan, batch):
            if np.isfinite(vector).all():
                pooled[slot] = _of_length_one(vector)
            else:
                failed[slot] = "the vector is not finite"
        took_s = time.perf_counter() - started_s
        return StepResult(plan.step_id, none, none, took_s, failed=failed, pooled=pooled)

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, StepResult), "collect takes what launch returned"
        return handle

    def reset(self) -> None:
        self._clear()
        self._prove()

    def close(self) -> None:
        del self._model, self._attention, self._state

    def _pool(self, plan: StepPlan, batch: StepBatch) -> Iterator[tuple[int, Vector]]:
        """Yield the vectors of the prompts that this step completes, with their slots."""
        if self._pooling is Pooling.LAST:
            last = self._hidden(batch, batch.logit_rows)
            yield from zip(batch.slots.tolist(), last, strict=True)
            return
        states, begin = self._hidden(batch, None), 0
        for piece in plan.slices:
            assert piece.start == 0 or piece.slot in self._sums, "a mean is of all its tokens"
            total = states[begin : begin + piece.n_tokens].sum(axis=0)
            begin += piece.n_tokens
            if piece.start:
                total += self._sums.pop(piece.slot)
            if piece.sample:
                yield piece.slot, total / (piece.start + piece.n_tokens)
            else:
                self._sums[piece.slot] = total

    def _hidden(self, batch: StepBatch, rows: NDArray[np.int64] | None) -> Vector:
        self._attention.plan(batch.attention)
        hidden = self._model.hidden(
            torch.from_numpy(batch.token_ids),
            torch.from_numpy(batch.positions),
            self._attention,
            None if rows is None else torch.from_numpy(rows),
        )
        states: Vector = hidden.double().numpy()
        return states

    def _clear(self) -> None:
        self._state.clear()
        self._sums.clear()
        self._row_faults.clear()

    def _prove(self) -> None:
        """Make a vector, which raises where nothing can be computed, and forget it."""
        n = min(8, self._info.max_model_len - 1, self._info.max_num_batched_tokens)
        if n < 1:
            return
        params = SamplingParams(max_tokens=1)
        sequence = NewSequence(0, "warm-up", array("i", [0] * n), n, 0, (), params)
        whole = SequenceSlice(0, 0, n, (0,), True)
        plan = StepPlan(0, admitted=(sequence,), slices=(whole,))
        refuse_failed_proof(self.collect(self.launch(plan)))
        self._clear()


def _of_length_one(vector: Vector) -> array[float]:
    """Scale a vector, and round it to float32."""
    scaled = vector / max(float(np.linalg.norm(vector)), _LEAST_LENGTH)
    return array("f", scaled.astype(np.float32).tobytes())
