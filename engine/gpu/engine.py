"""The engine on a GPU: plans in, sampled tokens out, two steps in flight.

`launch` writes what a plan changes, fills a buffer, uploads it and replays the graphs of the step's
size; it waits for nothing. `collect` waits for the event behind the step's tokens. In between the
sampled ids stay on the device, where the next step finds them, so a step is launched while the one
before it computes.

One stream does everything in the order of the launches: uploads, the step, the copy of its tokens
back. So a block, a slot or a buffer that a later step takes over cannot be written while an earlier
one still reads it, which is where engines that overlap their steps break. The price is the copy of
a few hundred bytes between two steps.

What few rows ask for (biases, penalties, masks of constraints, log-probabilities) is done launch by
launch between the two graphs of a step; the rest of the step is captured all the same.

Failures are as in `engine.cpu.runner`. A fault of the device comes out of `collect` or a later
launch, and `reset`, which computes two small steps, says whether the device can go on.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import EngineConfig
from engine.contract import (
    DecodeRows,
    EngineInfo,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from engine.gpu.fused_decoder import FusedDecoder
from engine.gpu.kv_cache import KVCache, free_bytes
from engine.gpu.layout import arrays_of, num_words
from engine.gpu.program import Parts, Program
from engine.gpu.programs import Programs
from engine.gpu.prompt_scores import PromptScores, ScoredPrompts
from engine.gpu.sampling_columns import SamplingColumns
from engine.gpu.slot_table import SlotTable
from engine.gpu.staging import Staging
from engine.gpu.step_tail import Tail, TailResult
from engine.gpu.stopwatch import Stopwatch
from engine.kernels.choose import choose_operations, decode_wave, matvec_rows
from engine.models.hf_config import load_model_config
from engine.models.load import load_decoder
from engine.out_of_memory import told_as_out_of_memory
from engine.row_faults import RowFaults, refuse_failed_proof
from engine.sizes import choose_dtype, find_device, fit

_NOT_FINITE = "the logits are not finite"
_RARE = SamplingParams(
    max_tokens=2,
    temperature=0.5,
    top_p=0.9,
    repetition_penalty=1.1,
    logit_bias=((0, 0.5),),
    logprobs=1,
    prompt_logprobs=1,
)


@dataclass(slots=True)
class _Step:
    """Hold a step that was launched: who draws, where its tokens arrive, and who failed before."""

    step_id: int
    slots: NDArray[np.int32]
    watch: Stopwatch
    tokens: Tensor
    failed: Mapping[int, str]
    tail: TailResult | None = None
    prompts: ScoredPrompts | None = None


class GpuEngine:
    """Implement `engine.contract.Engine` for a Hugging Face directory on a GPU.

    Raises: `ModelError`: the directory cannot be served. `EngineError`: the sizes do not fit, or
    the device is not there. Both in one line.
    """

    def __init__(self, config: EngineConfig) -> None:
        device = self._device = find_device(config.device)
        self._enter_device()
        others_bytes = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        model_config = load_model_config(config.model_dir)
        dtype = choose_dtype(config.dtype, model_config.dtype, device)
        kv_dtype = torch.float8_e4m3fn if config.kv_dtype == "fp8" else dtype
        decoder = load_decoder(config, model_config, dtype, device)
        if device.type == "cuda":
            for linear in decoder.linears():
                linear.lay_out_by_column()
        sizes = fit(
            config,
            model_config,
            dtype,
            kv_cache_bytes=(
                free_bytes(config, decoder, device, others_bytes=others_bytes)
                if device.type == "cuda" and config.kv_cache_bytes is None
                else 0
            )
            or config.pool_bytes,
            kv_itemsize=kv_dtype.itemsize,
            num_kv_heads=decoder.num_kv_heads,
            depth=2 if config.overlap else 1,
        )
        info = self._info = sizes.info
        # Where nothing else is said, launches overlap in steps of few tokens.
        operations = choose_operations(device, dependent_launch=bool(config.dependent_launch))
        of_few = choose_operations(device, dependent_launch=config.dependent_launch)
        cache = KVCache(sizes.kv_cache, dtype=kv_dtype, device=device)
        wave = decode_wave(cache.keys[0], dtype)
        self._table = SlotTable(
            max_num_seqs=info.max_num_seqs,
            max_model_len=info.max_model_len,
            block_size=info.block_size,
            widest_window=max(w or info.max_model_len for w in model_config.windows),
            wave=wave,
            device=device,
        )
        self._columns = SamplingColumns(
            max_num_seqs=info.max_num_seqs,
            vocab_size=info.vocab_size,
            eos_token_ids=frozenset(i for i in info.eos_token_ids if i < info.vocab_size),
            device=device,
        )
        self._staging = Staging(Programs.num_words(info, wave), device)
        parts = Parts(
            decoder=FusedDecoder(decoder, operations, cache),
            operations=operations,
            table=self._table,
            columns=self._columns,
            words=self._staging.words,
            logits=torch.empty(info.max_num_seqs, info.vocab_size, dtype=dtype, device=device),
        )
        fused_rows = matvec_rows(device, model_config.hidden_size, asked=config.fused_matvec)
        few_parts = replace(
            parts,
            decoder=FusedDecoder(decoder, of_few, cache, matvec_rows=fused_rows),
            operations=of_few,
        )
        self._tail = Tail(operations, self._columns)
        self._prompts = PromptScores(device)
        self._row_faults = RowFaults(vocab_size=info.vocab_size)
        self._arrivals = [self._arrival() for _ in range(2)]
        self._programs = Programs(parts, few_parts, info, graphs=config.graphs)
        self._programs.capture(self._fill_padding)
        self._prove()
        # What few ask for is compiled now, not when the first one asks.
        self._run_alone(_RARE)

    @property
    def info(self) -> EngineInfo:
        return self._info

    def launch(self, plan: StepPlan) -> object:
        self._enter_device()
        with told_as_out_of_memory(plan):
            return self._launch(plan)

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, _Step), "collect takes what launch returned"
        step = handle
        step_s = step.watch.wait_s()
        token_ids = step.tokens.numpy()[: len(step.slots)].astype(np.int32)
        reasons = dict(step.failed)
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        if step.prompts is not None:
            prompt_logprobs, bad = step.prompts.read()
            reasons |= dict.fromkeys(bad, _NOT_FINITE)
        reasons |= dict.fromkeys(step.slots[token_ids < 0].tolist(), _NOT_FINITE)
        slots = step.slots
        unmet = {} if step.tail is None else step.tail.take_drawn(slots, token_ids)
        masks = None if step.tail is None else step.tail.mask_costs()
        reasons |= unmet
        logprobs = None if step.tail is None else step.tail.read(token_ids)
        if reasons:
            good = ~np.isin(slots, list(reasons))
            slots, token_ids = slots[good], token_ids[good]
            if logprobs is not None:
                logprobs = [logprobs[row] for row in np.flatnonzero(good)]
        return StepResult(
            step.step_id,
            array("i", slots.tobytes()),
            array("i", token_ids.tobytes()),
            step_s,
            failed=reasons,
            unmet=tuple(unmet),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            masks=masks,
        )

    def reset(self) -> None:
        self._enter_device()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        self._clear()
        self._prove()

    def close(self) -> None:
        del self._programs, self._tail, self._table, self._columns, self._staging
        if self._device.type == "cuda":
            # torch keeps what is freed, and whoever comes next would not find it; a device that
            # has failed gives nothing back.
            with suppress(RuntimeError):
                torch.cuda.empty_cache()

    def _launch(self, plan: StepPlan) -> _Step:
        watch = Stopwatch(self._device)
        plan, refused = self._row_faults.screen(plan)
        self._columns.release(plan.released, plan.preempted)
        self._prompts.release(plan.released)
        self._table.apply(plan)
        self._columns.admit(plan.admitted)
        self._prompts.admit(plan.admitted)
        self._arrivals.reverse()
        tokens = self._arrivals[0]
        if plan.is_empty:
            watch.stop()
            return _Step(plan.step_id, np.empty(0, np.int32), watch, tokens, refused)
        program = self._programs.choose(self._table.bucket_of(plan))
        arrays = arrays_of(self._staging.begin(), program.bucket)
        slots = self._table.fill(plan, arrays)
        self._staging.upload(num_words(program.bucket))
        scored = self._prompts.rows_of(plan)
        program.run_model(None if scored is None else scored.logit_rows)
        step = _Step(plan.step_id, slots, watch, tokens, refused)
        if scored is not None:
            step.prompts = scored.measure(program.logits[program.bucket.num_rows :])
        positions = arrays.draw_positions[: len(slots)]
        step.tail = self._tail.run(program, slots, positions)
        if step.tail is None:
            program.run_draw()
        tokens[: len(program.drawn)].copy_(program.drawn, non_blocking=True)
        watch.stop()
        return step

    def _enter_device(self) -> None:
        """Make the device this thread's: kernels and events go to the one that is."""
        if self._device.type == "cuda" and self._device.index is not None:
            torch.cuda.set_device(self._device)

    def _arrival(self) -> Tensor:
        """Make room for the drawn tokens of a step, on the host."""
        return torch.zeros(
            self._info.max_num_seqs, dtype=torch.int32, pin_memory=self._device.type == "cuda"
        )

    def _fill_padding(self, program: Program) -> None:
        """Upload a step of this size that only pads."""
        arrays = arrays_of(self._staging.begin(), program.bucket)
        self._table.fill(StepPlan(0), arrays)
        self._staging.upload(num_words(program.bucket))

    def _clear(self) -> None:
        # The cache keeps its bytes: without a table that names them, nothing reads them.
        self._table.clear()
        self._columns.clear()
        self._prompts.clear()
        self._row_faults.clear()

    def _prove(self) -> None:
        """Compute two steps, which raise where the device cannot."""
        self._run_alone(SamplingParams(max_tokens=2, top_k=2, top_p=0.9))

    def _run_alone(self, params: SamplingParams) -> None:
        """Run a prefill and a decode, and forget them."""
        n = min(8, self._info.max_model_len - 1, self._info.max_num_batched_tokens)
        if n < 1:
            return
        sequence = NewSequence(0, "warm-up", array("i", [0] * n), n, 0, (), params)
        prefill = SequenceSlice(0, 0, n, (0,), True)
        decodes = DecodeRows()
        decodes.append(0, n)
        for plan in (
            StepPlan(0, admitted=(sequence,), slices=(prefill,)),
            StepPlan(1, decodes=decodes),
        ):
            refuse_failed_proof(self.collect(self.launch(plan)))
        self._clear()
