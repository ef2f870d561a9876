"""An engine without a model: the contract's behaviour, at a price, with checks.

It answers every plan as a real engine would, with tokens that depend on (seed, position) alone,
and takes the time that a `StepCost` says: in real time when given a `sleep`, otherwise virtually
(the caller advances its clock by `StepResult.step_s`).

It is also the referee of schedulers. Every plan is checked by assertions: slots are admitted
once, sequences are computed without gaps and within their block tables, a block is written by
one live sequence only, and a prefix hit holds what its sequence says it holds. For that the
referee names the content of each full block by a rolling hash of all tokens up to its end. Long
simulations run without: checking a step takes several times as long as answering it.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.contract import (
    DecodeRows,
    EngineInfo,
    NewSequence,
    SequenceSlice,
    StepPlan,
    StepResult,
)
from engine.step_cost import StepCost

_MASK = (1 << 64) - 1
_NEVER = -1


def draw_token(seed: int, position: int, alphabet: Sequence[int]) -> int:
    """Draw the token at `position`; the same whatever was computed when and beside whom.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return alphabet[(mixed ^ (mixed >> 31)) % len(alphabet)]


class SimulatedEngine:
    """Run plans without computing anything; see the module.

    `alphabet` holds the token ids to draw from (all of the vocabulary by default, end tokens
    included). `output_lengths` says by request id which output token, counted from one, is an
    end token, as a model would decide; the caller may add to it. `sleep` is called with a step's
    seconds when it is collected; None is virtual time. `checks` has plans refereed.
    """

    def __init__(
        self,
        cost: StepCost,
        *,
        vocab_size: int,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        num_blocks: int,
        block_size: int,
        eos_token_ids: frozenset[int] = frozenset(),
        alphabet: Sequence[int] | None = None,
        output_lengths: Mapping[str, int] | None = None,
        depth: int = 1,
        sleep: Callable[[float], None] | None = None,
        checks: bool = True,
        model_max_len: int | None = None,
        why_shorter: str | None = None,
    ) -> None:
        self.info = EngineInfo(
            model_type="simulated",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            num_blocks=num_blocks,
            block_size=block_size,
            eos_token_ids=eos_token_ids,
            depth=depth,
            device="simulated",
            model_max_len=model_max_len,
            why_shorter=why_shorter,
        )
        assert eos_token_ids or output_lengths is None, "an end needs an end token"
        self._cost = cost
        self._alphabet = range(vocab_size) if alphabet is None else alphabet
        self._output_lengths = output_lengths
        self._end_token_id = min(eos_token_ids, default=0)
        self._sleep = sleep
        self._closed = False
        self._last_step_id = -1
        self._referee = _Referee(self.info) if checks else None
        self.reset()

    def launch(self, plan: StepPlan) -> StepResult:
        """Check and execute a step; its result waits for `collect`."""
        assert not self._closed, "the engine is closed"
        assert len(self._in_flight) < self.info.depth, "too many steps in flight"
        assert plan.step_id > self._last_step_id, "steps go forward"
        self._last_step_id = plan.step_id
        if self._referee is not None:
            self._referee.check(plan)
        for sequence in plan.admitted:
            self._admit(sequence)
        slots = array("i", plan.decodes.slots)
        token_ids = self._draw(plan.decodes)
        for chunk in plan.slices:
            if chunk.sample:
                slots.append(chunk.slot)
                token_ids.append(self._token(chunk.slot, chunk.start + chunk.n_tokens))
        if self._referee is not None:
            self._referee.note_drawn(slots, token_ids)
        result = StepResult(plan.step_id, slots, token_ids, self._cost.price_s(plan))
        self._in_flight.append(result)
        return result

    def collect(self, handle: object) -> StepResult:
        """Return what `launch` made, after the time that the step takes."""
        assert self._in_flight, "nothing is in flight"
        result = self._in_flight.popleft()
        assert result is handle, "steps are collected in the order of their launch"
        if self._sleep is not None:
            self._sleep(result.step_s)
        return result

    def reset(self) -> None:
        """Forget every slot, all content and what is in flight; step ids still go forward."""
        self._seeds = [0] * self.info.max_num_seqs
        self._ends = [_NEVER] * self.info.max_num_seqs
        self._in_flight: deque[StepResult] = deque()
        if self._referee is not None:
            self._referee.reset()

    def close(self) -> None:
        self._closed = True

    def _admit(self, sequence: NewSequence) -> None:
        self._seeds[sequence.slot] = sequence.params.seed
        if self._output_lengths is not None:
            num_output_tokens = self._output_lengths[sequence.request_id]
            self._ends[sequence.slot] = sequence.num_prompt_tokens + num_output_tokens - 1

    def _draw(self, rows: DecodeRows) -> array[int]:
        """Draw the token after each row's newest; runs once a row and step."""
        if len(self._alphabet) > 1:
            token = self._token
            pairs = zip(rows.slots, rows.positions, strict=True)
            return array("i", [token(slot, position + 1) for slot, position in pairs])
        token_ids = array("i", self._alphabet) * len(rows)
        if self._output_lengths is not None:
            ends = self._ends
            for index, slot in enumerate(rows.slots):
                if rows.positions[index] + 1 == ends[slot]:
                    token_ids[index] = self._end_token_id
        return token_ids

    def _token(self, slot: int, position: int) -> int:
        if position == self._ends[slot]:
            return self._end_token_id
        return draw_token(self._seeds[slot], position, self._alphabet)


class _Referee:
    """Follow every plan and assert that it is feasible and true."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self.reset()

    def reset(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._num_owners: Counter[int] = Counter()
        self._content: dict[int, int] = {}

    def check(self, plan: StepPlan) -> None:
        """Take a plan's changes in, in the order in which the contract applies them."""
        assert not plan.is_empty, "an empty plan is not worth a launch"
        assert plan.num_tokens <= self._info.max_num_batched_tokens, "over the token budget"
        assert len({*plan.decodes.slots, *(s.slot for s in plan.slices)}) == len(
            plan.decodes
        ) + len(plan.slices), "a slot computes twice in one step"
        for slot in plan.released:
            self._release(slot)
        for sequence in plan.admitted:
            self._admit(sequence)
        assert len(self._rows) <= self._info.max_num_seqs, "too many rows"
        self._decode(plan.decodes)
        for chunk in plan.slices:
            self._compute_slice(chunk)

    def note_drawn(self, slots: array[int], token_ids: array[int]) -> None:
        for slot, token_id in zip(slots, token_ids, strict=True):
            row = self._rows[slot]
            assert len(row.token_ids) < self._info.max_model_len, "past max_model_len"
            row.token_ids.append(token_id)

    def _release(self, slot: int) -> None:
        row = self._rows.pop(slot, None)
        assert row is not None, f"slot {slot} is released but not in use"
        for block_id in row.block_ids:
            self._num_owners[block_id] -= 1

    def _admit(self, sequence: NewSequence) -> None:
        block_size = self._info.block_size
        num_hit_blocks = len(sequence.block_ids)
        assert sequence.slot not in self._rows, f"slot {sequence.slot} is taken"
        assert 0 <= sequence.slot < self._info.max_num_seqs, "no such slot"
        assert 0 < sequence.num_prompt_tokens <= len(sequence.token_ids)
        assert sequence.num_computed == num_hit_blocks * block_size, "a hit is of full blocks"
        assert sequence.num_computed < len(sequence.token_ids), "nothing is left to compute"
        row = _Row(array("i", sequence.token_ids), sequence.num_computed)
        for index, block_id in enumerate(sequence.block_ids):
            row.hash_block(index, block_size)
            assert self._content.get(block_id) == row.content, (
                f"block {block_id} does not hold the prefix of {sequence.request_id}"
            )
            self._num_owners[block_id] += 1
            row.block_ids.append(block_id)
        self._rows[sequence.slot] = row

    def _decode(self, rows: DecodeRows) -> None:
        assert len(rows.slots) == len(rows.positions) == len(rows.new_block_ids)
        for slot, position, block_id in zip(
            rows.slots, rows.positions, rows.new_block_ids, strict=True
        ):
            row = self._rows[slot]
            if block_id >= 0:
                self._append_block(row, block_id)
            assert position == row.num_computed == len(row.token_ids) - 1, (
                f"slot {slot} decodes at {position}, computed {row.num_computed} "
                f"of {len(row.token_ids)}"
            )
            self._compute(row, 1)

    def _compute_slice(self, chunk: SequenceSlice) -> None:
        row = self._rows[chunk.slot]
        assert chunk.n_tokens > 0, "an empty slice"
        assert not chunk.drafts, "drafts are not among the capabilities"
        assert chunk.start == row.num_computed, "a slice starts where the last one ended"
        end = chunk.start + chunk.n_tokens
        assert end <= len(row.token_ids), "a slice past the newest token"
        assert chunk.sample == (end == len(row.token_ids)), "the newest token, and it, samples"
        for block_id in chunk.new_block_ids:
            self._append_block(row, block_id)
        self._compute(row, chunk.n_tokens)

    def _append_block(self, row: _Row, block_id: int) -> None:
        assert 0 <= block_id < self._info.num_blocks, f"no block {block_id}"
        assert not self._num_owners[block_id], f"block {block_id} is new to one but used by another"
        self._num_owners[block_id] = 1
        self._content.pop(block_id, None)
        row.block_ids.append(block_id)

    def _compute(self, row: _Row, num_tokens: int) -> None:
        block_size = self._info.block_size
        first = row.num_computed // block_size
        row.num_computed += num_tokens
        assert row.num_computed <= len(row.block_ids) * block_size, "past the block table"
        for index in range(first, row.num_computed // block_size):
            row.hash_block(index, block_size)
            self._content[row.block_ids[index]] = row.content


@dataclass(slots=True)
class _Row:
    """Hold a slot's sequence; `content` names its tokens up to its last full block."""

    token_ids: array[int]
    num_computed: int
    block_ids: list[int] = field(default_factory=list)
    content: int = 0

    def hash_block(self, index: int, block_size: int) -> None:
        block = self.token_ids[index * block_size : (index + 1) * block_size]
        self.content = hash((self.content, block.tobytes()))
