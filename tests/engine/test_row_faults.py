"""Sequences that would break a step fail alone, and what a step without memory raises."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.contract import DecodeRows, NewSequence, SamplingParams, SequenceSlice, StepPlan
from engine.cpu.runner import TorchEngine
from engine.errors import EngineOutOfMemory
from engine.models.attention import AttentionBackend
from engine.models.layers import CausalLM
from engine.out_of_memory import is_out_of_memory
from engine.row_faults import RowFaults
from plan_driver import PlanDriver

VOCAB_SIZE = 128
NUM_NEW_TOKENS = 6
GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)
PROMPTS = [[i + 3, 9, 40 + i] * (3 + i) for i in range(5)]


def make_engine(model_dir: Path) -> TorchEngine:
    return TorchEngine(
        EngineConfig(
            model_dir=model_dir, block_size=16, num_blocks=64, max_num_seqs=8, num_threads=1
        )
    )


def asking(**wishes: object) -> SamplingParams:
    return SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0, **wishes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("token_id", "params", "reason"),
    [
        (VOCAB_SIZE, GREEDY, "a token id is outside the vocabulary"),
        (-1, GREEDY, "a token id is outside the vocabulary"),
        (7, asking(logit_bias=((VOCAB_SIZE + 3, 90.0),)), "a logit_bias is of a token outside"),
        (7, asking(logit_bias=((-5, 90.0),)), "a logit_bias is of a token outside"),
        (7, asking(min_tokens=3, stop_token_ids=(VOCAB_SIZE + 9,)), "a stop token is outside"),
        (7, asking(top_k=1 << 70), "top_k"),
        (7, asking(logprobs=-1), "logprobs -1 is out of bounds"),
        (7, asking(prompt_logprobs=1 << 64), "prompt_logprobs"),
        (7, asking(logit_bias=((5, math.nan),)), "the logits are not finite"),
        (7, asking(logit_bias=((5, math.inf),)), "the logits are not finite"),
        (7, asking(repetition_penalty=0.0), "the logits are not finite"),
        (7, asking(frequency_penalty=math.nan, logit_bias=((5, 1.0),)), "are not finite"),
    ],
)
def test_a_sequence_that_would_break_its_step_fails_alone(
    tiny_llama_dir: Path, token_id: int, params: SamplingParams, reason: str
) -> None:
    """Whatever one sequence asks for, its neighbours draw what they draw without it."""
    engine = make_engine(tiny_llama_dir)
    expected = PlanDriver(engine).run(PROMPTS, GREEDY)
    for place in (0, 2, len(PROMPTS)):
        prompts = [*PROMPTS[:place], [4, token_id, 6] * 6, *PROMPTS[place:]]
        each = [GREEDY] * len(PROMPTS)
        each.insert(place, params)
        driver = PlanDriver(engine, seed=place)
        tokens = driver.run(prompts, each)
        culprit = tokens.pop(place)
        assert tokens == expected
        assert list(driver.failures) == [place]
        assert reason in driver.failures[place]
        assert len(culprit) < NUM_NEW_TOKENS


def test_stop_tokens_beyond_the_vocabulary_harm_nobody_without_min_tokens(
    tiny_llama_dir: Path,
) -> None:
    """Where no token is to be hidden, a stop token that cannot be drawn is no fault."""
    engine = make_engine(tiny_llama_dir)
    params = asking(stop_token_ids=(VOCAB_SIZE,))
    assert PlanDriver(engine).run(PROMPTS, params) == PlanDriver(engine).run(PROMPTS, GREEDY)


def test_a_refused_row_is_cut_until_its_slot_is_released() -> None:
    """Plans that were made before the refusal was known have its rows cut; a new owner is not."""
    faults = RowFaults(vocab_size=VOCAB_SIZE)
    bad = NewSequence(1, "bad", array("i", [VOCAB_SIZE, 1]), 2, 0, (), GREEDY)
    good = NewSequence(0, "good", array("i", [5, 1]), 2, 0, (), GREEDY)
    pieces = [SequenceSlice(slot, 0, 2, (slot,), True) for slot in (0, 1)]
    plan, failed = faults.screen(StepPlan(0, admitted=(good, bad), slices=pieces))
    assert (list(plan.admitted), list(plan.slices), list(failed)) == ([good], pieces[:1], [1])
    decodes = DecodeRows()
    decodes.append(0, 2)
    decodes.append(1, 2, 9)
    plan, failed = faults.screen(StepPlan(1, decodes=decodes))
    assert (list(plan.decodes.slots), list(failed)) == ([0], [1])
    fresh = NewSequence(1, "fresh", array("i", [5, 1]), 2, 0, (), GREEDY)
    whole = StepPlan(2, admitted=(fresh,), slices=pieces[1:], released=(1,))
    plan, failed = faults.screen(whole)
    assert plan is whole
    assert not failed


class WithoutMemory:
    """Be a model that fails as an allocator does."""

    def __init__(self, model: CausalLM, error: Exception) -> None:
        self.model = model
        self.errors = [error]

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionBackend,
        logit_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        if self.errors:
            raise self.errors.pop()
        return self.model.forward(token_ids, positions, attention, logit_rows)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
def test_a_step_without_memory_says_so_and_reset_mends_it(
    tiny_llama_dir: Path, error: Exception
) -> None:
    """Whatever an allocator raises comes out as EngineOutOfMemory; after a reset all is well."""
    engine = make_engine(tiny_llama_dir)
    expected = PlanDriver(engine).run(PROMPTS, GREEDY)
    engine._model = WithoutMemory(engine._model, error)
    with pytest.raises(EngineOutOfMemory, match="a step of 75 tokens found no memory") as caught:
        PlanDriver(engine).run(PROMPTS, GREEDY)
    assert caught.value.__cause__ is error
    engine.reset()
    assert PlanDriver(engine).run(PROMPTS, GREEDY) == expected


def test_a_real_allocation_failure_is_recognised() -> None:
    """What torch and NumPy raise on this machine for a tensor beyond any memory is recognised."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_device_that_is_broken_shows_in_the_reset(tiny_llama_dir: Path) -> None:
    """The step that `reset` tries raises what the device does, so nobody takes it for mended."""
    engine = make_engine(tiny_llama_dir)
    engine._model = WithoutMemory(engine._model, RuntimeError("device-side assert triggered"))
    with pytest.raises(RuntimeError, match="device-side assert"):
        engine.reset()
