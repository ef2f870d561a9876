"""What happened to one request in the scheduler, and why: facts with times, for whoever explains.

The scheduler knows no traces. It keeps what costs a few operations at each change of a request's
state and none in between, and hands it over once, with the last output.

Why a request waited is read off one clock for all: each plan adds the time since the one before to
what kept it from letting more in (`WaitCause`), so the causes of a wait are the difference between
the sums at its end and at its beginning, however many wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class WaitCause(StrEnum):
    """Say what kept those who waited from a slot.

    `STEP`: nothing but the step that ran; `SLOTS`, `BLOCKS`: none were free for whoever was next;
    `PROMPTS`: prompts of others took the tokens that a step may have; `INTERVAL`: the queue was
    not looked at; `HELD`: another computed the same prompt; `BATCH`: it was of the batch band, and
    online work took the room.
    """

    STEP = "step"
    SLOTS = "slots"
    BLOCKS = "blocks"
    PROMPTS = "prompts"
    INTERVAL = "interval"
    HELD = "held"
    BATCH = "batch"


class PreemptionCause(StrEnum):
    """Say for what a running request was sent back.

    `BLOCKS`: rows that decode needed its blocks; `BAND`: a higher band needed its place; `SHARE`:
    one below its share did; `FAULT`: a step failed, or found no memory, and all began again.
    """

    BLOCKS = "blocks"
    BAND = "band"
    SHARE = "share"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Preempted:
    """Tell of one time that a request was sent back; `resumed_s` None: it never ran again."""

    at_s: float
    cause: PreemptionCause
    resumed_s: float | None = None


# One is made at each request's end, in a step; frozen, it takes four times as long to make.
@dataclass(slots=True, kw_only=True)
class RequestFacts:
    """Tell what became of a request; times are in seconds on the scheduler's clock.

    It was taken in at `queued_s` behind `num_ahead`, first had a slot at `admitted_s`, drew its
    first token at `first_token_s` and ended at `ended_s`; what it did not come to is None.
    `waits_s` says what it waited for before it first had a slot, which sums up to the wait, and
    `rests_s` how long, between its first token and its end, it had no part in a step: `paused` for
    a grant, `preempted`, and `shared`, where it sat out for others (that part of the time in which
    it might have run which is its part of the steps).

    Its prompt took `num_chunks` of the `num_prefill_steps` steps from its slot to its first token;
    in the others the prompts of others went first. `num_cached_tokens` of the prompt were found.
    The longest step that it sat through before its first token took `longest_step_s` and computed
    `longest_step_tokens` tokens of prompts.
    """

    queued_s: float
    num_ahead: int
    admitted_s: float | None
    first_token_s: float | None
    ended_s: float
    waits_s: Mapping[WaitCause, float] = field(default_factory=dict)
    rests_s: Mapping[str, float] = field(default_factory=dict)
    num_chunks: int = 0
    num_prefill_steps: int = 0
    longest_step_s: float = 0.0
    longest_step_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    preemptions: tuple[Preempted, ...] = ()
