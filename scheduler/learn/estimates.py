"""What is expected of a request when it begins to wait: the figures that policies order by."""

from __future__ import annotations

from engine.contract import EngineInfo
from engine.step_cost import StepFeatures
from scheduler.config import SchedulerConfig
from scheduler.learn.length_model import Lengths
from scheduler.learn.step_model import StepModel
from scheduler.order import next_due_s, start_by_s
from scheduler.sequence import Sequence

_ONE_DECODE = StepFeatures(num_decode_tokens=1)


class Estimates:
    """Fill in a sequence's expectations."""

    def __init__(
        self, config: SchedulerConfig, info: EngineInfo, step_model: StepModel, lengths: Lengths
    ) -> None:
        self._best_effort_ttft_s = config.fairness.best_effort_ttft_s
        self._chunk_tokens = min(
            info.max_num_batched_tokens,
            config.composer.max_num_batched_tokens or info.max_num_batched_tokens,
        )
        self._step_model = step_model
        self._lengths = lengths

    def update(self, sequence: Sequence) -> None:
        """Look at a sequence anew; its blocks are matched against the cache."""
        request = sequence.request
        num_found = sequence.table.count_found(sequence.token_ids)
        sequence.num_uncached = sequence.num_tokens - num_found
        num_drawn = sequence.num_output_tokens
        sequence.expected_output = self._lengths.quantile(
            request.tenant_id,
            sequence.num_prompt_tokens,
            0.5,
            generated=num_drawn,
            max_tokens=request.params.max_tokens,
        )
        prefill_s = self._step_model.prefill_s(
            sequence.num_uncached,
            chunk_tokens=self._chunk_tokens,
            decodes=_ONE_DECODE,
            context_tokens=num_found,
        )
        sequence.prefill_s = prefill_s
        decode_s = self._step_model.price_s(_ONE_DECODE)
        sequence.service_s = prefill_s + decode_s * max(1.0, sequence.expected_output - num_drawn)
        due_s = next_due_s(sequence, best_effort_ttft_s=self._best_effort_ttft_s)
        sequence.deadline_s = due_s
        sequence.start_by_s = start_by_s(request, due_s, prefill_s)
