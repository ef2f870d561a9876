"""Who is refused at once, rather than kept waiting in vain.

A request that was promised a time to its first token is refused when it would come too late: the
wait that is predicted (`waits`) is more than a part of the promise. That part is `ttft_fraction`,
less what the last predictions near the limit have missed by, so that nearly all who are taken in
are served in time whatever the predictions are worth. A promise that was missed before the
request's turn has come is not kept for anybody: such work is dropped (`is_expired`), as soon as
its time is over. Queues are bounded as well (`queue_bounds`).

Whose fault it is: the request would have been taken had its tenant's queue been within the share
of its weight, then it is the tenant's (`TENANT_LIMITED`), else it is our capacity's
(`OVERLOADED`). Refusing changes nothing: it is asked before the request is in the tree.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from engine.contract import EngineInfo
from engine.step_cost import StepFeatures
from scheduler.admission.drain_rate import DrainRate
from scheduler.admission.margins import Margins
from scheduler.admission.queue_ahead import QueueAhead
from scheduler.admission.queue_bounds import QueueBounds
from scheduler.admission.waits import Wait, Waits
from scheduler.config import AdmissionConfig
from scheduler.learn import Lengths, StepModel
from scheduler.order import NEVER, FairTree, first_due_s, given_up_s
from scheduler.request import Band, Reject, RejectCode, Request, Sender
from scheduler.running import RunningSet
from scheduler.sequence import Sequence, Status

_LENGTH_QUANTILE = 0.9
# Of a promise: a shorter queue says little about what predictions of queues are worth.
_LONG_QUEUE = 0.25
_ONE_TOKEN = StepFeatures(num_prefill_tokens=1)


class Admission:
    """Refuse requests; see the module.

    With `lengths`, requests that are predicted never to fit the KV cache are refused too. What an
    instance `before` has learned goes on to count.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        info: EngineInfo,
        tree: FairTree,
        running: RunningSet,
        step_model: StepModel,
        *,
        jitter: random.Random,
        lengths: Lengths | None = None,
        before: Admission | None = None,
    ) -> None:
        self._config = config
        self._max_model_len = info.max_model_len
        self._capacity_tokens = info.num_blocks * info.block_size
        self._tree = tree
        self._running = running
        self._step_model = step_model
        self._lengths = lengths
        self._jitter = jitter
        self._queue: QueueAhead
        if before is not None and before._tree is tree:
            self._queue = before._queue
        else:
            self._queue = QueueAhead(tree)
        self._rate = DrainRate(info, step_model)
        self._margins = Margins()
        self._rejections: Counter[str] = Counter()
        # Of those that were promised something, had a queue before them and have no token yet.
        self._predicted: dict[Sequence, Wait] = {}
        self._started: dict[Sequence, None] = {}
        self._num_running = 0
        if before is not None:
            self._rate, self._margins = before._rate, before._margins
            self._rejections = before._rejections
        self._bounds = QueueBounds(config, tree, running, self._queue)
        self._waits = Waits(self._queue, self._rate, running)

    @property
    def rejections(self) -> Mapping[str, int]:
        """Count refusals by what they were for."""
        return self._rejections

    def refuse_too_long(self, request: Request) -> Reject | None:
        """Say why a request can never be served, whatever else there is, or None."""
        num_prompt_tokens, max_tokens = len(request.prompt_token_ids), request.params.max_tokens
        if num_prompt_tokens + max_tokens > self._max_model_len:
            reason = f"The prompt of {num_prompt_tokens} tokens and max_tokens of {max_tokens} "
            reason += f"exceed the context of {self._max_model_len} tokens."
        elif num_prompt_tokens + 1 > (max_len := min(self._max_model_len, self._capacity_tokens)):
            reason = f"The prompt of {num_prompt_tokens} tokens exceeds the {max_len - 1} "
            reason += "that this server has room for."
        else:
            return None
        self._rejections["too_long"] += 1
        return Reject(reason, RejectCode.CONTEXT_LENGTH_EXCEEDED, cause="too_long")

    def refuse(self, sequence: Sequence, now: float) -> Reject | None:
        """Say why a request is not taken in, or None; it is in no queue yet."""
        return (
            self._refuse_impossible(sequence, now)
            or self._refuse_full(sequence.request, sequence.num_uncached)
            or self._refuse_late(sequence, now)
        )

    def is_beyond_promise(self, sequence: Sequence) -> bool:
        """Tell whether a request's prompt alone takes longer than it was promised to.

        Refusing it would be refusing it for ever, with a time to come back at that is never true.
        """
        promise_s = sequence.request.slo.ttft_s
        if promise_s is None or not self._config.predict_ttft:
            return False
        if not self._step_model.is_calibrated:
            return False
        return sequence.prefill_s / self._config.ttft_fraction > promise_s

    def predict_ttft_s(self, sequence: Sequence, now: float) -> float:
        """Predict the time from its arrival to its first token of a request that joins now."""
        return now - sequence.request.arrival_s + sum(self._waits.predict(sequence, now))

    def backlog_s(self, lowest: Band = Band.BATCH) -> float:
        """Say how long it takes to begin all that waits in `lowest` and the bands above."""
        bands = self._tree.bands.values()
        queued = sum(band.waiting_tokens for band in bands if band.band <= lowest)
        return queued / self._tokens_per_s()

    def is_light(self, sender: Sender, patience_s: float) -> bool:
        """Tell whether a sender has little waiting, whatever others have.

        Neither its tenant nor its organisation has more than half of its share of the places in
        the queue, nor more tokens than it would begin within `patience_s` at its share.
        """
        shares = self._queue.shares(sender)
        tokens_per_s = self._tokens_per_s()
        num_places = self._config.max_num_queued / 2
        found = (
            (self._tree.find_tenant(sender), shares.tenant),
            (self._tree.find_organisation(sender), shares.organisation),
        )
        return not any(
            node is not None
            and (
                node.num_waiting > share * num_places
                or node.waiting_tokens > patience_s * share * tokens_per_s
            )
            for node, share in found
        )

    def is_expired(self, sequence: Sequence, now: float) -> bool:
        """Tell whether a request whose turn has come can no longer be served in time."""
        if not self._config.drop_expired or sequence.num_output_tokens:
            return False
        request = sequence.request
        for end_s in (request.expires_s, request.finish_by_s):
            if end_s is not None and now >= end_s:
                return True
        due_s = first_due_s(request)
        if due_s == NEVER:
            return False
        return now + self._step_model.price_s(_ONE_TOKEN) > due_s

    def note_step(
        self, features: StepFeatures, step_s: float, now: float, *, is_full: bool = True
    ) -> None:
        """Learn from a step that has come back, once what it drew is known.

        `is_full`: it had no room for more prompts. What waits all the same waits for memory, or for
        somebody else's turn to be over, and says nothing of how fast prompts are computed.
        """
        departed, num_returned = self._queue.take_changes()
        num_begun = sum(sequence.was_admitted for sequence in departed)
        num_running = len(self._running)
        num_ended = max(0, self._num_running + num_begun - num_returned - num_running)
        self._num_running = num_running
        # A request that waited before the step was planned was left out of it, for want of room
        # in the step unless it was a slot that it lacked.
        joined_s = self._queue.oldest_joined_s
        was_left_out = joined_s is not None and joined_s < now - self._rate.depth * step_s
        had_slots = self._running.num_free_slots > num_ended
        is_backlogged = is_full and was_left_out and had_slots
        self._rate.note(features, step_s, now, is_backlogged=is_backlogged)
        self._rate.note_ends(num_ended, step_s)
        for sequence in departed:
            if sequence in self._predicted:
                self._started[sequence] = None
        for sequence in list(self._started):
            self._follow(sequence, now)

    def _follow(self, sequence: Sequence, now: float) -> None:
        """Learn how long a request waited for its first token, once that is known."""
        if not sequence.num_output_tokens and sequence.status is not Status.FINISHED:
            if sequence in self._tree:
                # Sent back, or held for another: thousands may be, and each step looks at all.
                del self._started[sequence]
            return
        del self._started[sequence]
        predicted = self._predicted.pop(sequence)
        took_s = now - sequence.request.arrival_s
        promise_s = sequence.request.slo.ttft_s
        # One that was cancelled in time says nothing; one that was dropped was too late.
        if sequence.num_output_tokens or (promise_s is not None and took_s > promise_s):
            self._margins.add(_payer(sequence), predicted.queue_s, took_s - predicted.sure_s)

    def _refuse_impossible(self, sequence: Sequence, now: float) -> Reject | None:
        request = sequence.request
        if given_up_s(request) <= now:
            reason = "The time for the first token had passed before the request was taken in."
            return self._reject("deadline", reason, RejectCode.OVERLOADED, 0.0)
        if self._lengths is None or not self._config.predict_ttft:
            return None
        num_output = self._lengths.quantile(
            request.tenant_id,
            sequence.num_prompt_tokens,
            _LENGTH_QUANTILE,
            max_tokens=request.params.max_tokens,
        )
        if sequence.num_prompt_tokens + num_output <= self._capacity_tokens:
            return None
        reason = (
            f"The prompt of {sequence.num_prompt_tokens} tokens and an answer of about "
            f"{round(num_output)} exceed the {self._capacity_tokens} that this server has room for."
        )
        self._rejections["never_fits"] += 1
        return Reject(reason, RejectCode.CONTEXT_LENGTH_EXCEEDED, cause="never_fits")

    def refuse_many(
        self, sender: Sender, num_requests: int, num_prompt_tokens: int
    ) -> Reject | None:
        """Say why requests of a sender would not all find room in the queue, or None.

        Those do not wait that slots are free for, beyond those that wait already.
        """
        num_before = self._tree.num_live - len(self._running)
        num_begun = max(0, self._running.num_free_slots - num_before)
        num_waiting = num_requests - num_begun
        if num_waiting < 1:
            return None
        num_tokens = num_prompt_tokens * num_waiting / num_requests
        return self._refuse_full(sender, num_tokens, num_requests=num_waiting)

    def _refuse_full(
        self, sender: Sender | Request, num_tokens: float, *, num_requests: int = 1
    ) -> Reject | None:
        excess = self._bounds.exceeded_by(sender, num_tokens, num_requests=num_requests)
        if excess is None:
            return None
        retry_s = excess.num_tokens / self._tokens_per_s()
        return self._reject(excess.kind, excess.reason, _code(excess.is_tenants_own), retry_s)

    def _refuse_late(self, sequence: Sequence, now: float) -> Reject | None:
        promise_s = sequence.request.slo.ttft_s
        if promise_s is None or not self._config.predict_ttft:
            return None
        if not self._step_model.is_calibrated:
            return None
        wait = self._waits.predict(sequence, now, at_most_s=promise_s)
        first_s = self._latest_s(sequence, wait, now)
        if first_s <= promise_s:
            if wait.queue_s > _LONG_QUEUE * promise_s:
                sure_s = now - sequence.request.arrival_s + wait.sure_s
                self._predicted[sequence] = Wait(sure_s, wait.queue_s)
            return None
        reason = f"The first token would come in about {first_s:.1f} s; "
        reason += f"your tenant is promised {promise_s:g} s."
        fair_wait = self._waits.at_share(sequence, now, promise_s, wait.sure_s)
        code = _code(self._latest_s(sequence, fair_wait, now) <= promise_s)
        return self._reject("ttft", reason, code, first_s - promise_s)

    def _latest_s(self, sequence: Sequence, wait: Wait, now: float) -> float:
        """Say by when the first token has come, from the arrival, as good as surely."""
        predicted_s = now - sequence.request.arrival_s + wait.sure_s + wait.queue_s
        margin_s = self._margins.margin_s(_payer(sequence), wait.queue_s)
        return max(predicted_s / self._config.ttft_fraction, predicted_s + margin_s)

    def _reject(self, kind: str, reason: str, code: RejectCode, excess_s: float) -> Reject:
        self._rejections[kind] += 1
        retry_s = max(1.0, excess_s) * self._jitter.uniform(0.8, 1.2)
        return Reject(reason, code, retry_s, kind)

    def _tokens_per_s(self) -> float:
        return max(1e-3, self._rate.tokens_per_s())


def _payer(sequence: Sequence) -> tuple[Band, str]:
    return sequence.request.band, sequence.request.tenant_id


def _code(is_tenants_own: bool) -> RejectCode:
    return RejectCode.TENANT_LIMITED if is_tenants_own else RejectCode.OVERLOADED
