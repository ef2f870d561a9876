"""The log-probabilities that the engine gives the tokens of a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.contract import NewSequence, SamplingParams, SequenceSlice, StepPlan
from tests.gpu.asked import Asked


def prompt_logprobs(
    asked: Asked, model_dir: Path, dtype: str, prompt: Sequence[int]
) -> list[float]:
    """Score all tokens of `prompt` but the first, in one step."""
    config = EngineConfig(
        model_dir=model_dir,
        device=asked.device,
        dtype=dtype,
        block_size=16,
        num_blocks=16,
        max_num_seqs=1,
        num_threads=1,
    )
    n = len(prompt)
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    sequence = NewSequence(0, "scored", array("i", prompt), n, 0, (), params)
    chunk = SequenceSlice(0, 0, n, tuple(range(-(-n // 16))), True)
    plan = StepPlan(1, admitted=(sequence,), slices=(chunk,))
    with asked.engine(config) as engine:
        result = engine.collect(engine.launch(plan))
    return [entry.logprob for entry in result.prompt_logprobs[0]]
