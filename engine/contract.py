"""What passes between a scheduler and an engine: plans go down, results come up.

The scheduler owns queueing, KV accounting, chunk sizes and victims; an engine owns tensors and
sampling. A plan is feasible when it is made, so an engine never refuses one. There is one rule
of progress: a sequence needs computing until `num_computed == num_tokens`; prefill, chunk,
resume after a preemption, decode and the check of a draft are the same case.

A plan carries deltas. An engine keeps, for every *slot* (a stable row of its state table), the
token ids, the block table and the sampling parameters, and a plan names only what changes:

- `released`: slots that a finished, cancelled or preempted sequence no longer uses. They are
  applied first, so a slot may be released and admitted again in one plan.
- `admitted`: sequences that take a slot, with all their tokens so far (the prompt, and after a
  preemption what was already generated) and the blocks whose content is already computed.
- `slices`: runs of tokens to compute for sequences that do more than decode one token.
- `decodes`: rows that compute just their newest token, as parallel arrays, not objects.

Up to `EngineInfo.depth` steps may be in flight. With a depth of 2 the newest token of a row may
still be on the device when the next step that reads it is launched: the engine takes it from its
own state table. This module knows no tensors, no tenants, no queues and loads no torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Capability(StrEnum):
    """Name what an engine can do beyond plain sampling; callers refuse what is not listed."""

    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    PENALTIES = "penalties"
    LOGIT_BIAS = "logit_bias"
    MIN_TOKENS = "min_tokens"
    DRAFTS = "drafts"
    GRAMMAR = "grammar"
    POOLING = "pooling"


class TokenConstraint(Protocol):
    """Say which tokens may come next in one sequence, as a grammar does.

    One is asked by one thread at a time, and by another than it was made on. Each method may raise
    `engine.errors.ConstraintFailed`, which ends its sequence and no other.
    """

    def fill_mask(self, words: NDArray[np.int32], address: int) -> None:
        """Write which tokens may come next, [ceil(vocab_size / 32)].

        Bit `i % 32` of word `i // 32`, from the lowest, is 1 where token i may. End tokens may
        only where what came so far is whole. `words` lie at `address`: to ask an array for that
        takes as long as a mask.
        """
        ...

    def accept(self, token_ids: Sequence[int]) -> None:
        """Go on behind tokens that were drawn; at an end token it is over."""
        ...

    def copy(self) -> TokenConstraint:
        """Return another that goes on from here by itself."""
        ...


class Pooling(StrEnum):
    """Say what of a sequence's last hidden states is its vector: that of its last token, or the
    mean of all, which no block of a prefix cache holds."""

    LAST = "last"
    MEAN = "mean"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SamplingParams:
    """Say how the tokens of one sequence are drawn and when it ends.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. The draw depends on
    (`seed`, position, token id) alone, so that it is the same whatever the batch, the slot, the
    chunking or a preemption; whoever makes a request without a seed draws one. `stop_token_ids`
    are ids that end the sequence besides the model's own end tokens, which `ignore_eos`
    switches off. The scheduler enforces `max_tokens` and the stop tokens; the engine the rest.
    Fields that belong to a `Capability` may be set only where the engine lists it: until there
    are `min_tokens` output tokens, no token that ends the sequence is drawn; `repetition_penalty`
    looks at prompt and output, the other two at the output; `logit_bias` comes before them, and
    all of them before the temperature. What a `constraint` forbids is hidden after all of them.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    # Capability.MIN_TOKENS
    min_tokens: int = 0
    # Capability.PENALTIES
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    # Capability.LOGIT_BIAS
    logit_bias: tuple[tuple[int, float], ...] = ()
    # Capability.LOGPROBS and PROMPT_LOGPROBS: how many of the likeliest tokens to name
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    # Capability.GRAMMAR: at its beginning, where it stays; each sequence goes on with a copy
    constraint: TokenConstraint | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class NewSequence:
    """Hand a sequence's whole state to an engine once, when it takes a slot.

    `token_ids[:num_prompt_tokens]` is the prompt; what follows was generated before a
    preemption. The first `num_computed` tokens are already in the KV blocks `block_ids` (a
    prefix hit), in order; slices bring the blocks for the rest.
    """

    slot: int
    request_id: str
    token_ids: array[int]
    num_prompt_tokens: int
    num_computed: int
    block_ids: Sequence[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """Compute tokens `[start, start + n_tokens)` of the sequence in `slot`.

    `new_block_ids` are appended to the slot's block table first. With `sample` the slice ends
    at the newest token and the engine draws the next one. `drafts` are proposed tokens after
    the newest one, to be checked in the same pass (Capability.DRAFTS).
    """

    slot: int
    start: int
    n_tokens: int
    new_block_ids: Sequence[int]
    sample: bool
    drafts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Hold the rows that compute one token and sample the next, as parallel arrays.

    `positions[i]` is the index of the token that row i computes (its newest);
    `new_block_ids[i]` is a block to append to its table first, or -1.
    """

    slots: array[int] = field(default_factory=lambda: array("i"))
    positions: array[int] = field(default_factory=lambda: array("i"))
    new_block_ids: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.slots)

    def append(self, slot: int, position: int, new_block_id: int = -1) -> None:
        self.slots.append(slot)
        self.positions.append(position)
        self.new_block_ids.append(new_block_id)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Tell an engine all that changes in one step; see the module for the order of application.

    `preempted` names the requests among `released` whose sequences will come back: an engine
    with a place to keep their KV may copy it out, one without ignores it.
    """

    step_id: int
    decodes: DecodeRows = field(default_factory=DecodeRows)
    slices: Sequence[SequenceSlice] = ()
    admitted: Sequence[NewSequence] = ()
    released: Sequence[int] = ()
    preempted: Sequence[str] = ()

    @property
    def num_tokens(self) -> int:
        """Count the tokens that this step computes, drafts included."""
        return len(self.decodes) + sum(s.n_tokens + len(s.drafts) for s in self.slices)

    @property
    def is_empty(self) -> bool:
        return not len(self.decodes) and not self.slices


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Give the log-probability of a token and of the likeliest ones, by the model's own logits.

    `rank` is 1 for the likeliest token. The likeliest tokens come in two columns, the likeliest
    first; the token itself is among them where its rank says so. A column is one object whatever
    its length: an answer holds a million of these pairs, and letting go of as many objects at once
    takes as long as many a step.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: array[int] = field(default_factory=lambda: array("i"))
    top_logprobs: array[float] = field(default_factory=lambda: array("f"))

    @property
    def top(self) -> Iterator[tuple[int, float]]:
        """Pair the likeliest tokens with their log-probabilities."""
        return zip(self.top_ids, self.top_logprobs, strict=True)


@dataclass(frozen=True, slots=True)
class MaskCosts:
    """Say of rows that have a constraint how long a processor computed what each allows.

    `slots`, each once, and `took_s`, [num_masked]; `all_s` is the sum of these. The step waited for
    them for `waited_s`, when all else that was needed to draw was there.
    """

    slots: NDArray[np.int32]
    took_s: NDArray[np.float64]
    all_s: float
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """Report what one step produced.

    `slots[i]` got the token `token_ids[i]`; where drafts were accepted, the tokens of
    `accepted[i]` follow it. Rows come in the plan's order: decodes, then the slices that sample.
    A row in `failed` (slot → reason, for logs) produced nothing and its sequence must be ended;
    the other rows are good. Those in `unmet` among them failed by what they were asked: nothing
    was left to draw that their constraint allows. `step_s` is the engine's own time for the step,
    in seconds.

    `logprobs` go with `token_ids`, None for a row that did not ask. `prompt_logprobs` has the
    slots that asked and computed a slice: of the prompt tokens `[start + 1, start + n_tokens]` of
    that slice, as far as the prompt goes. A prompt's first token has none.

    `masks` has the rows that have a constraint, those that failed among them.

    An engine with `EngineInfo.pooling` draws no tokens: a slice that samples gives its slot a
    vector of length 1 in `pooled`, float32, and no place among `slots`.
    """

    step_id: int
    slots: array[int]
    token_ids: array[int]
    step_s: float
    failed: Mapping[int, str] = field(default_factory=dict)
    unmet: Collection[int] = ()
    logprobs: Sequence[TokenLogprobs | None] | None = None
    prompt_logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    masks: MaskCosts | None = None
    accepted: Sequence[Sequence[int]] | None = None
    pooled: Mapping[int, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """State an engine's limits; they do not change while it lives.

    `depth` says how many steps may be in flight: 2 where launching ahead hides host work (a
    GPU), 1 where it would only delay the tokens of the step before (a CPU). A step scores at
    most `max_num_prompt_logprobs` prompt tokens, whose logits must all be held at once.
    `model_max_len` is the context that the model was made for, `why_shorter` why `max_model_len`
    is less; None where it is not. One with `pooling` makes vectors of `embedding_size` numbers and
    nothing else.
    """

    model_type: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    eos_token_ids: frozenset[int]
    depth: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    capabilities: frozenset[Capability] = frozenset()
    max_num_prompt_logprobs: int = 0
    model_max_len: int | None = None
    why_shorter: str | None = None
    pooling: Pooling | None = None
    embedding_size: int = 0


class Engine(Protocol):
    """Run plans. One thread calls it; `launch` and `collect` alternate in plan order."""

    @property
    def info(self) -> EngineInfo: ...

    def launch(self, plan: StepPlan) -> object:
        """Start a step and return its handle; at most `info.depth` may be uncollected.

        Raises: `EngineOutOfMemory`: the step found no memory; a smaller one may be launched after
            a `reset`. Any other exception: the whole step failed and its rows with it; `reset`
            comes next.
        """
        ...

    def collect(self, handle: object) -> StepResult:
        """Wait for the step of `handle`. Raises as `launch` does."""
        ...

    def reset(self) -> None:
        """Forget every slot and all KV content, keep the weights; called after a failed step.

        Raises: any exception: the engine is beyond repair.
        """
        ...

    def close(self) -> None:
        """Give back memory and threads; nothing may be called afterwards."""
        ...
