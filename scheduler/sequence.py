"""A request on its way through the scheduler: the one mutable thing in it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence as Many
from dataclasses import replace
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.contract import EngineInfo, TokenLogprobs
from engine.kv.table import BlockTable
from engine.scored import ScoredPrompt
from scheduler.facts import RequestFacts
from scheduler.request import FinishReason, Request, RequestOutput
from scheduler.watch.course import Course

NO_SLOT = -1
# Places in `Sequence.account`.
KEY, MEMBER = 0, 2


class Status(Enum):
    WAITING = 0
    RUNNING = 1
    FINISHED = 2


class Columns(Protocol):
    """Hold the counts and newest tokens of sequences that decode, by slot.

    `num_tokens` and `num_known` are as a sequence's own.
    """

    num_tokens: NDArray[np.intc]
    num_known: NDArray[np.intc]

    def flush(self, sequence: Sequence) -> None:
        """Hand a sequence its newest tokens."""
        ...

    def bound(self, sequence: Sequence) -> None:
        """Note that a sequence may draw more, or must end before."""
        ...


class Sequence:
    """Hold a request's tokens and how far they are computed.

    `token_ids` are those that are known. `num_tokens` counts as well those that a launched step
    will have drawn, so `num_tokens - len(token_ids)` are in flight; `num_computed` counts what
    was launched, not what has come back. A decoding row has `num_computed == num_tokens - 1`.

    While it decodes, its counts and newest tokens are in `columns`; it reads them there.

    A sequence ends at `limit` tokens and draws none beyond `pause_at`, the lesser of the limit
    and what its request was granted. One that waits is in the queue unless it is paused, or held
    for another that computes what it needs.

    `prompt_logprobs` are those that have come back, of the prompt's first tokens; it is None
    where they are not asked for, and once they are complete. `course` is what is noted of it for
    its facts.

    `num_charged` tokens of the prompt are paid for, `num_prepaid` of the output before they are
    drawn, at `prepaid_cost`; its tenant's counter was `begun_at_counter` before. `num_ran` tokens
    have ever been computed or found, `num_prefilled` of the prompt, but for what a fault took. What
    is expected of it when it begins to wait: `num_uncached` tokens to compute, which takes
    `prefill_s` with nothing beside them, `expected_output` tokens in all to draw, `service_s`
    seconds of work, the next token due at `deadline_s` and so to be begun by `start_by_s`.
    `counter` is kept by the policy that orders it. One that `is_guaranteed` runs on its band's
    share though higher bands wait. `holder` names its band and who has a share of it. `account` has
    the entries in the tree's counters of its key, of its tenant, of its organisation (its tenant
    again where that has none) and of its band; `ends_as_model` tells that it ends where the model
    says and nowhere else.
    """

    __slots__ = (
        "_num_computed",
        "_num_tokens",
        "_token_ids",
        "account",
        "admitted_at_step",
        "begun_at_counter",
        "columns",
        "counter",
        "course",
        "deadline_s",
        "end_token_ids",
        "ends_as_model",
        "expected_output",
        "first_token_s",
        "holder",
        "is_guaranteed",
        "is_held",
        "limit",
        "num_bypassed",
        "num_cached_tokens",
        "num_charged",
        "num_preemptions",
        "num_prefilled",
        "num_prepaid",
        "num_prompt_tokens",
        "num_ran",
        "num_uncached",
        "ordinal",
        "pause_at",
        "prefill_s",
        "prepaid_cost",
        "prompt_logprobs",
        "request",
        "request_id",
        "service_s",
        "slot",
        "start_by_s",
        "status",
        "table",
        "was_admitted",
    )

    def __init__(
        self, request: Request, table: BlockTable, *, ordinal: int, max_len: int, info: EngineInfo
    ) -> None:
        params = request.params
        self.request = request
        self.request_id = request.request_id
        self.table = table
        self.ordinal = ordinal
        self.columns: Columns | None = None
        self._token_ids = array("i", request.prompt_token_ids)
        self.num_prompt_tokens = self._num_tokens = len(self._token_ids)
        self._num_computed = 0
        self.account = (0, 0, 0, 0)
        self.holder = (int(request.band), request.member)
        self.num_cached_tokens = 0
        self.num_charged = self.num_prepaid = self.num_ran = self.num_prefilled = 0
        self.prepaid_cost = self.begun_at_counter = 0.0
        self.num_preemptions = self.num_bypassed = 0
        self.first_token_s: float | None = None
        self.admitted_at_step = 0
        self.counter = 0.0
        self.num_uncached = self.num_prompt_tokens
        self.expected_output = float(params.max_tokens)
        self.service_s = self.prefill_s = 0.0
        self.deadline_s = self.start_by_s = math.inf
        self.slot = NO_SLOT
        self.status = Status.WAITING
        self.was_admitted = False
        self.course = Course()
        self.is_held = self.is_guaranteed = False
        self.prompt_logprobs: ScoredPrompt | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = ScoredPrompt()
        self.limit = min(self.num_prompt_tokens + params.max_tokens, max_len)
        self.pause_at = self.num_prompt_tokens
        self.grant(request.granted_tokens)
        self.end_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.end_token_ids |= info.eos_token_ids
        self.ends_as_model = self.end_token_ids == info.eos_token_ids

    def head(self, now: float) -> Sequence:
        """Be what is served next of itself, as a child of the fair tree."""
        return self

    @property
    def weight(self) -> float:
        """Weigh as much as its siblings: shares are for tenants."""
        return 1.0

    @property
    def token_ids(self) -> array[int]:
        if self.columns is not None:
            self.columns.flush(self)
        return self._token_ids

    @property
    def num_tokens(self) -> int:
        columns = self.columns
        return self._num_tokens if columns is None else columns.num_tokens.item(self.slot)

    @num_tokens.setter
    def num_tokens(self, value: int) -> None:
        assert self.columns is None, "the counts of a row that decodes are not its own"
        self._num_tokens = value

    @property
    def num_computed(self) -> int:
        return self._num_computed if self.columns is None else self.num_tokens - 1

    @num_computed.setter
    def num_computed(self, value: int) -> None:
        assert self.columns is None, "the counts of a row that decodes are not its own"
        self._num_computed = value

    @property
    def num_known(self) -> int:
        """Count the tokens that are known, those of the prompt included."""
        columns = self.columns
        return len(self._token_ids) if columns is None else columns.num_known.item(self.slot)

    @property
    def num_in_flight(self) -> int:
        """Count the tokens that launched steps will have drawn."""
        return self.num_tokens - self.num_known

    @property
    def num_output_tokens(self) -> int:
        """Count the tokens that were drawn and have come back, an end token included."""
        return self.num_known - self.num_prompt_tokens

    @property
    def is_paused(self) -> bool:
        """Tell whether no token may be drawn before a step lands or a grant is extended."""
        return self.num_tokens >= self.pause_at

    def append_tokens(self, token_ids: bytes) -> None:
        """Take tokens that have landed, as an `array` of them would be in memory."""
        self._token_ids.frombytes(token_ids)

    def grant(self, num_tokens: int | None) -> None:
        """Allow `num_tokens` output tokens in all, never fewer than before; None is no bound."""
        granted_len = self.limit if num_tokens is None else self.num_prompt_tokens + num_tokens
        self.pause_at = max(self.pause_at, min(self.limit, granted_len))
        if self.columns is not None:
            self.columns.bound(self)

    def end_at_grant(self) -> None:
        """End where the grant does."""
        self.limit = self.pause_at
        if self.columns is not None:
            self.columns.bound(self)

    def forgo_ttft(self) -> None:
        """Go on as if no time to the first token had been promised, which could not be kept."""
        slo = replace(self.request.slo, ttft_s=None)
        self.request = replace(self.request, slo=slo)

    def note_progress(self) -> None:
        """Remember how far it has come, before that is lost."""
        num_computed = self.num_computed
        self.num_ran = max(self.num_ran, num_computed)
        self.num_prefilled = max(self.num_prefilled, min(num_computed, self.num_prompt_tokens))

    def lose_kv(self) -> None:
        """Go back to where nothing is computed; known tokens and those in flight stay."""
        self.note_progress()
        self.num_computed = 0
        self.slot = NO_SLOT
        self.status = Status.WAITING

    def lose_in_flight(self) -> None:
        """Forget the tokens of steps that will never come back; they will be drawn again."""
        self.num_tokens = len(self._token_ids)

    def take_prompt_logprobs(
        self, start: int, logprobs: Many[TokenLogprobs]
    ) -> RequestOutput | None:
        """Take those that a slice from `start` has scored; returns them all once complete.

        After a preemption a slice may score again what is known already.
        """
        known = self.prompt_logprobs
        if known is None:
            return None
        assert start < len(known), "prompts are scored without gaps"
        known.extend(logprobs[len(known) - 1 - start :])
        if len(known) < self.num_prompt_tokens:
            return None
        self.prompt_logprobs = None
        return self.output((), None, prompt_logprobs=known)

    def output(
        self,
        token_ids: tuple[int, ...],
        finish_reason: FinishReason | None,
        error: str | None = None,
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        prompt_logprobs: Many[TokenLogprobs | None] | None = None,
        facts: RequestFacts | None = None,
        pooled: Many[float] | None = None,
    ) -> RequestOutput:
        """Report to the caller of the request."""
        num_output_tokens = self.num_output_tokens
        return RequestOutput(
            self.request.request_id,
            token_ids,
            finish_reason,
            self.num_cached_tokens,
            num_output_tokens,
            error,
            logprobs,
            prompt_logprobs,
            self.num_prompt_tokens if num_output_tokens else self.num_prefilled,
            facts,
            pooled,
        )
