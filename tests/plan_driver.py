"""Drive an Engine with plans made by hand: a scheduler of the simplest kind, for engine tests.

All sequences run at once. It deals out slots and shuffled blocks, cuts prompts into chunks, and
can shuffle the batch, share full prefix blocks, and preempt every sequence after every token.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.contract import (
    DecodeRows,
    Engine,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
    StepResult,
)


@dataclass
class _Running:
    index: int
    tokens: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    slot: int = -1
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    failure: str | None = None

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def ended(self) -> bool:
        return self.failure is not None or self.num_generated >= self.params.max_tokens


class PlanDriver:
    """Run sequences to their `max_tokens` on an engine; end tokens are ignored."""

    def __init__(
        self,
        engine: Engine,
        *,
        chunk: int | None = None,
        shuffle: bool = False,
        prefix_cache: bool = False,
        preempt: bool = False,
        seed: int = 0,
    ) -> None:
        self._engine = engine
        self._chunk = chunk
        self._shuffle = shuffle
        self._prefix_cache = prefix_cache
        self._preempt = preempt
        self._random = random.Random(seed)
        self._block_size = engine.info.block_size
        self._free_slots = list(range(engine.info.max_num_seqs))
        self._free_blocks = list(range(engine.info.num_blocks))
        self._random.shuffle(self._free_slots)
        self._random.shuffle(self._free_blocks)
        self._cached: dict[tuple[int, ...], int] = {}
        self._released: list[int] = []
        self._steps = 0
        self.num_cached_tokens = 0
        self.failures: dict[int, str] = {}
        self.unmet: set[int] = set()

    def run(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[list[int]]:
        """Return the generated tokens of each prompt; `failures` has the rows that failed."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        sequences = [
            _Running(i, list(prompt), len(prompt), each[i]) for i, prompt in enumerate(prompts)
        ]
        while live := [s for s in sequences if not s.ended]:
            if self._shuffle:
                self._random.shuffle(live)
            self._step(live)
        return [s.tokens[s.num_prompt_tokens :] for s in sequences]

    def _step(self, live: list[_Running]) -> None:
        admitted = [self._admit(s) for s in live if s.slot < 0]
        decodes, slices, samples = DecodeRows(), [], {}
        for s in live:
            start, pending = s.num_computed, len(s.tokens) - s.num_computed
            n = min(self._chunk or pending, pending)
            new_blocks = self._grow(s, start + n)
            if pending == 1 and s.num_generated:
                decodes.append(s.slot, start, new_blocks[0] if new_blocks else -1)
            else:
                slices.append(SequenceSlice(s.slot, start, n, new_blocks, n == pending))
            if n == pending:
                samples[s.slot] = s
            s.num_computed += n
            self._remember(s)
        plan = StepPlan(self._steps, decodes, slices, admitted, released=tuple(self._released))
        self._released.clear()
        self._steps += 1
        result = self._engine.collect(self._engine.launch(plan))
        self._take(result, plan, samples)

    def _take(self, result: StepResult, plan: StepPlan, samples: dict[int, _Running]) -> None:
        assert result.step_id == plan.step_id
        order = [*plan.decodes.slots, *(p.slot for p in plan.slices if p.sample)]
        assert list(result.slots) == [slot for slot in order if slot not in result.failed]
        for slot, token in zip(result.slots, result.token_ids, strict=True):
            samples[slot].tokens.append(token)
        for slot, reason in result.failed.items():
            self.failures[samples[slot].index] = samples[slot].failure = reason
        self.unmet |= {samples[slot].index for slot in result.unmet}
        for s in samples.values():
            if s.ended or self._preempt:
                self._release(s)

    def _admit(self, s: _Running) -> NewSequence:
        s.slot = self._free_slots.pop()
        s.block_ids = self._lookup(s.tokens)
        s.num_computed = len(s.block_ids) * self._block_size
        self.num_cached_tokens += s.num_computed
        return NewSequence(
            slot=s.slot,
            request_id=str(s.index),
            token_ids=array("i", s.tokens),
            num_prompt_tokens=s.num_prompt_tokens,
            num_computed=s.num_computed,
            block_ids=tuple(s.block_ids),
            params=s.params,
        )

    def _lookup(self, tokens: Sequence[int]) -> list[int]:
        found: list[int] = []
        while self._prefix_cache:
            end = (len(found) + 1) * self._block_size
            block = self._cached.get(tuple(tokens[:end]))
            if block is None or end > len(tokens) - 1:
                break
            found.append(block)
        return found

    def _grow(self, s: _Running, num_tokens: int) -> list[int]:
        missing = -(-num_tokens // self._block_size) - len(s.block_ids)
        new = [self._free_blocks.pop() for _ in range(missing)]
        s.block_ids += new
        return new

    def _remember(self, s: _Running) -> None:
        for i in range(s.num_computed // self._block_size if self._prefix_cache else 0):
            self._cached.setdefault(tuple(s.tokens[: (i + 1) * self._block_size]), s.block_ids[i])

    def _release(self, s: _Running) -> None:
        self._released.append(s.slot)
        self._free_slots.append(s.slot)
        kept = set(self._cached.values())
        self._free_blocks += [b for b in s.block_ids if b not in kept]
        self._random.shuffle(self._free_blocks)
        s.slot, s.num_computed, s.block_ids = -1, 0, []
