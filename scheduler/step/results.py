"""Takes what a step has computed to the requests it was for.

Between a step's plan and its report some of its rows may have ended, which gets nothing any more,
or been sent back, which still get the token that was in flight. Both are few: all other rows are
taken in together, as columns, and each gives one output.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
from numpy.typing import NDArray

from engine.contract import EngineInfo, StepResult, TokenLogprobs
from scheduler.lifecycle import Lifecycle
from scheduler.order import paced_s
from scheduler.outputs import Outputs
from scheduler.request import FinishReason, RequestOutput
from scheduler.running import Slots
from scheduler.sequence import Sequence, Status
from scheduler.step.draft import Step


class Results:
    """Take in the results of steps; see the module. `num_output_tokens` have landed in all."""

    def __init__(self, info: EngineInfo, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._running = lifecycle.running
        self._charges = lifecycle.charges
        self.num_output_tokens = 0
        # By token id.
        self._is_end = np.zeros(max((info.vocab_size - 1, *info.eos_token_ids)) + 1, dtype=bool)
        self._is_end[list(info.eos_token_ids)] = True
        if self._running.kernel is not None:
            self._running.kernel.ends_with(self._is_end)

    def take(self, step: Step, result: StepResult, now: float) -> Outputs:
        """Return what the rows of a step have new."""
        outputs = Outputs()
        if result.failed:
            outputs.add(self._end_failed(step, result, now))
        self._charges.begin_step(step.features)
        chunks = zip(step.slices, step.plan.slices, strict=True)
        self._charges.take_chunks(chunks, now)
        self._publish(step)
        for sequence in step.slices:
            if sequence.course.first_token_s is None:
                sequence.course.sit_through(self._running.step_times, now)
        if result.prompt_logprobs:
            outputs.add(self._take_prompt_logprobs(step, result))
        if result.pooled:
            outputs.add(self._take_pooled(step, result, now))
        outputs.add(self._take_tokens(step, result, now))
        for sequence, chunk in zip(step.slices, step.plan.slices, strict=True):
            if chunk.sample and sequence.status is Status.RUNNING:
                self._start_pace(sequence, now)
        return outputs

    def _start_pace(self, sequence: Sequence, now: float) -> None:
        """Note that a row has the first token of its output, or of it since a preemption."""
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        sequence.course.draw(now)
        self._running.pace.start(sequence.slot, sequence.request.slo, paced_s(sequence), now)

    def _take_tokens(self, step: Step, result: StepResult, now: float) -> Outputs:
        rows = self._running.decode_rows
        slots, epochs = step.sampling, step.epochs
        taken = self._take_compiled(step, result, now)
        if taken is not None:
            return taken
        decodes = slots[: len(step.decodes)]
        if len(decodes):
            self._running.pace.advance(decodes, now)
            self._running.kv_growth.advance(decodes)
        if result.failed or result.pooled:
            # Those that failed may be among the rows with a token, or not; what pools has none.
            kept = np.isin(slots, result.slots)
            slots, epochs = slots[kept], epochs[kept]
        assert len(slots) == len(result.token_ids), "a token for each row that draws one"
        token_ids = np.array(result.token_ids, dtype=np.intc)
        scores = result.logprobs or ()
        is_same = rows.epochs[slots] == epochs
        if is_same.all():
            return self._take_rows(slots, token_ids, scores, now)
        here = np.flatnonzero(is_same).tolist()
        gone = np.flatnonzero(~is_same).tolist()
        sequence_of_slot = step.sequence_of_slot()
        outputs = self._take_rows(
            slots[here], token_ids[here], [scores[i] for i in here] if scores else (), now
        )
        strays = [(sequence_of_slot[slots.item(i)], i) for i in gone]
        strays = [(sequence, i) for sequence, i in strays if sequence.status is not Status.FINISHED]
        self.num_output_tokens += len(strays)
        self._charges.take_outputs([sequence for sequence, _ in strays], now)
        outputs.add(
            self._take_stray(sequence, token_ids.item(i), scores[i] if scores else None, now)
            for sequence, i in strays
        )
        return outputs

    def _take_compiled(self, step: Step, result: StepResult, now: float) -> Outputs | None:
        """Take the tokens of an ordinary step by the compiled loop; None where it cannot."""
        kernel, rows = self._running.kernel, self._running.decode_rows
        if kernel is None or result.failed or result.logprobs or rows.num_with_own_ends:
            return None
        if result.pooled:
            return None
        charging = self._charges.taking()
        if charging is None:
            return None
        slots, token_ids = step.sampling, np.array(result.token_ids, dtype=np.intc)
        assert len(slots) == len(token_ids), "a token for each row that draws one"
        ledger, prices = charging
        taken = kernel.take(
            slots,
            step.epochs,
            token_ids,
            len(step.decodes),
            ledger=ledger,
            prices=prices,
            now=now,
        )
        if taken is None:
            return None
        self.num_output_tokens += len(slots)
        self._running.kv_growth.changed()
        self._charges.note_taken(taken.tenants, taken.bands, now)
        outputs = Outputs(taken.drawn)
        ended = taken.ended
        outputs.add(
            self._end_drawn(sequence, token_ids.item(i), None, now)
            for i, sequence in zip(ended, rows.sequences(slots[ended]), strict=True)
        )
        return outputs

    def _take_rows(
        self,
        slots: Slots,
        token_ids: NDArray[np.intc],
        scores: Many[TokenLogprobs | None],
        now: float,
    ) -> Outputs:
        """Take a token for each row that is still the one it was planned as."""
        rows = self._running.decode_rows
        self.num_output_tokens += len(slots)
        self._charges.take_drawn(slots, now)
        ends = rows.land(slots, token_ids)
        is_end = self._is_end[token_ids]
        if is_end.any():
            ends |= is_end & rows.ends_as_model[slots]
        if rows.num_with_own_ends:
            for i in np.flatnonzero(rows.has_own_ends[slots]).tolist():
                (sequence,) = rows.sequences(slots[i : i + 1])
                ends[i] |= token_ids.item(i) in sequence.end_token_ids
        ended = ends.nonzero()[0].tolist()
        sequences = rows.sequences(slots[ended])
        if ended:
            slots, landed = slots[~ends], token_ids[~ends]
        else:
            landed = token_ids
        outputs = Outputs(rows.drawn(slots, landed))
        if scores:
            going_on = [s for s, is_end in zip(scores, ends.tolist(), strict=True) if not is_end]
            outputs = Outputs(map(_with_logprobs, outputs, going_on))
        outputs.add(
            self._end_drawn(sequence, token_ids.item(i), scores[i] if scores else None, now)
            for i, sequence in zip(ended, sequences, strict=True)
        )
        return outputs

    def _take_stray(
        self, sequence: Sequence, token_id: int, score: TokenLogprobs | None, now: float
    ) -> RequestOutput:
        """Take a token that was in flight when its row was sent back."""
        sequence.course.draw(now)
        token_ids = sequence.token_ids
        token_ids.append(token_id)
        if len(token_ids) >= sequence.limit or token_id in sequence.end_token_ids:
            return self._end_drawn(sequence, token_id, score, now)
        return sequence.output((token_id,), None, logprobs=None if score is None else (score,))

    def _end_drawn(
        self, sequence: Sequence, token_id: int, score: TokenLogprobs | None, now: float
    ) -> RequestOutput:
        """End a sequence with the token that was its last."""
        logprobs = None if score is None else (score,)
        if token_id in sequence.end_token_ids:
            return self._lifecycle.end(sequence, FinishReason.STOP, now, logprobs=logprobs)
        return self._lifecycle.end(
            sequence, FinishReason.LENGTH, now, token_ids=(token_id,), logprobs=logprobs
        )

    def _end_failed(self, step: Step, result: StepResult, now: float) -> list[RequestOutput]:
        """End the rows that the engine gave up on; the others of the step are good."""
        sequence_of_slot = step.sequence_of_slot()
        failed = [(sequence_of_slot[slot], reason) for slot, reason in result.failed.items()]
        unmet = {sequence_of_slot[slot] for slot in result.unmet}
        return [
            self._lifecycle.end(
                sequence,
                FinishReason.UNMET if sequence in unmet else FinishReason.ERROR,
                now,
                error=reason,
            )
            for sequence, reason in failed
            if sequence.status is not Status.FINISHED
        ]

    def _publish(self, step: Step) -> None:
        """Make the blocks of prompts findable that a step which has come back filled.

        Who was sent back while it was under way may have a slot again: it was filled elsewhere.
        """
        for sequence, chunk in zip(step.slices, step.plan.slices, strict=True):
            is_same = sequence.admitted_at_step < step.number
            if sequence.status is Status.RUNNING and is_same:
                sequence.table.publish(sequence.token_ids, chunk.start + chunk.n_tokens)
                self._lifecycle.note_published(sequence)

    def _take_pooled(self, step: Step, result: StepResult, now: float) -> list[RequestOutput]:
        """End those whose prompt this step has completed where there is nothing to draw."""
        return [
            self._lifecycle.end(sequence, FinishReason.STOP, now, pooled=result.pooled[chunk.slot])
            for sequence, chunk in zip(step.slices, step.plan.slices, strict=True)
            if chunk.slot in result.pooled and sequence.status is not Status.FINISHED
        ]

    def _take_prompt_logprobs(self, step: Step, result: StepResult) -> list[RequestOutput]:
        """Hand out the prompts that this step has finished scoring."""
        outputs = [
            sequence.take_prompt_logprobs(chunk.start, result.prompt_logprobs[chunk.slot])
            for sequence, chunk in zip(step.slices, step.plan.slices, strict=True)
            if chunk.slot in result.prompt_logprobs and sequence.status is not Status.FINISHED
        ]
        return [output for output in outputs if output is not None]


def _with_logprobs(output: RequestOutput, score: TokenLogprobs | None) -> RequestOutput:
    return output if score is None else output._replace(logprobs=(score,))
