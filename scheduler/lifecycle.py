"""Every change in the life of a request: it waits, runs, is sent back, ends.

    take_in ──► queue ◄──► hold           in the fair tree; or held for another's prompt
                  │ ▲
            admit │ │ requeue             with a slot and blocks
                  ▼ │
               running ──► end            which any of them may come to at any time

The tree, the running set, the charges, those held for others and the heap of expiry times each
know a part of who is where. They are told here and nowhere else, so that they agree.

It decides nothing: who is admitted or sent back is the composer's, what was drawn and who is at
the end the results', what callers and faults ask for the core's. Those three are given this one
object; it knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from engine.contract import TokenLogprobs
from engine.kv.block_pool import BlockPool
from scheduler.admission import Admission, Expiry
from scheduler.config import FairnessConfig
from scheduler.facts import PreemptionCause, RequestFacts
from scheduler.learn import Estimates, Lengths
from scheduler.order import Charges, FairTree, Replicas, ShareWindow, Unit, Windows
from scheduler.request import Band, FinishReason, RequestOutput
from scheduler.running import RunningSet
from scheduler.sequence import Sequence, Status
from scheduler.step import Shared, SharedPrefix
from scheduler.watch.wait_clock import Sums, WaitClock

# Half of them end at once, at 20 µs each: with all else that a plan does, a millisecond at most.
MAX_DROPPED = 64


@dataclass(slots=True)
class Ended:
    """Count the requests that have ended, and their prompts where they were run."""

    num_expired: int = 0
    num_finished: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


@dataclass(slots=True)
class Begun:
    """Count the prompts of requests as they are first given slots, and what was found of them."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


class Lifecycle:
    """Move requests from one state to the next; see the module.

    `waiting` and `running` are who waits for a slot and who has one; look, but leave changing
    them to the methods. `charges` are what requests cost their tenants, `windows` says whose batch
    work is forced up, `begun`, `ended` and `preempted` count, `wait_clock` knows what those who
    wait wait for. Nothing can be done before `go_by` was told by what.
    """

    def __init__(
        self, config: FairnessConfig, pool: BlockPool, running: RunningSet, lengths: Lengths
    ) -> None:
        self._pool = pool
        self._lengths = lengths
        self.running = running
        self.waiting = FairTree(config)
        self.waiting.under_way = running.prefilling
        running.holdings.has_shares = self.waiting.has_shares
        self.charges = Charges(running)
        self.begun, self.ended = Begun(), Ended()
        self.preempted = dict.fromkeys(PreemptionCause, 0)
        self._shared_prefix = SharedPrefix(pool.block_size)
        self._expiry = Expiry()
        self.windows = Windows()
        self.shares = ShareWindow(self.waiting)
        self.wait_clock = WaitClock()
        self._sequences: dict[str, Sequence] = {}
        self._expired: list[RequestOutput] = []
        self._num_to_drop = MAX_DROPPED

    @property
    def num_queued(self) -> int:
        """Count the live requests that have no slot."""
        return len(self._sequences) - len(self.running)

    @property
    def num_waiting(self) -> int:
        """Count those that would take a slot, or will once another has computed their prompt."""
        return len(self.waiting) + self._shared_prefix.num_held

    @property
    def expires_s(self) -> float:
        """Say when to look next for who waits in vain; infinity where nobody can."""
        return self._expiry.next_s

    def find(self, request_id: str) -> Sequence | None:
        """Find a live request."""
        return self._sequences.get(request_id)

    def live(self) -> list[Sequence]:
        """List the live requests, the oldest first."""
        return list(self._sequences.values())

    def go_by(
        self,
        config: FairnessConfig,
        unit: Unit,
        estimates: Estimates,
        admission: Admission,
        now: float,
    ) -> None:
        """Charge, estimate and let expire by these from now on."""
        self.waiting.unit = unit
        self.charges.go_by(config, self.waiting, unit)
        self.running.renumber()
        self.windows.go_by(config.band_shares.get(Band.DUE, 0.0), self.waiting, unit, now)
        self._estimates = estimates
        self._admission = admission

    def reorder(self, config: FairnessConfig, now: float) -> list[Sequence]:
        """Put an empty tree of another order in the place of the one that is.

        Tenants and keys keep what they were charged where the policy of their level stays.
        Returns: who waited, to be queued again once `go_by` was told.
        """
        before = self.waiting
        self.waiting = FairTree(config)
        self.waiting.under_way = self.running.prefilling
        self.running.holdings.has_shares = self.waiting.has_shares
        for sequence in self._sequences.values():
            self.waiting.enrol(sequence, now)
        self.shares = ShareWindow(self.waiting, self.shares.last)
        # After that, since a weight may have been edited since a request came with its own.
        self.waiting.carry_over(before)
        return sorted(before, key=lambda sequence: sequence.ordinal)

    def take_in(self, sequence: Sequence, now: float) -> None:
        """Let a new request wait; what is expected of it is known."""
        sequence.course.queue(self.num_waiting, self._sums(sequence, now), now)
        self._sequences[sequence.request_id] = sequence
        self.running.holdings.join(sequence, now)
        self.waiting.enrol(sequence, now)
        self.waiting.push(sequence, now)
        self._expiry.add(sequence)
        self.windows.join(sequence, now)

    def queue(self, sequence: Sequence, now: float) -> None:
        """Let a request wait for a slot; a paused one would only stand in the way."""
        if not (sequence.is_paused or sequence.is_held) and sequence not in self.waiting:
            if sequence.course.is_held:
                sequence.course.let_go(self._sums(sequence, now), now)
            self._estimates.update(sequence)
            self.waiting.push(sequence, now)

    def grant(self, sequence: Sequence, num_tokens: int | None, now: float) -> None:
        """Let a request draw up to `num_tokens` output tokens in all, which may end its pause."""
        self.running.note_pause(sequence)
        sequence.course.end_pause(now)
        sequence.grant(num_tokens)
        if sequence.status is Status.WAITING:
            self.queue(sequence, now)

    def computes_prompt(self, sequence: Sequence, num_found: int) -> Shared | None:
        """Say who is computing a request's prompt so that it should wait, if anyone.

        Its first `num_found` blocks are in the cache.
        """
        return self._shared_prefix.find(sequence, num_found)

    def hold(self, sequence: Sequence, shared: Shared, now: float) -> bool:
        """Take a request out of the queue while another computes its prompt.

        Returns: whether it is held; a step holds no more than a few.
        """
        if not self._shared_prefix.hold(sequence, shared):
            return False
        self.waiting.remove(sequence, now)
        sequence.course.hold(self._sums(sequence, now), now)
        return True

    def admit(
        self,
        sequence: Sequence,
        hit: list[int],
        expected_len: float,
        now: float,
        *,
        is_pinned: bool = False,
    ) -> list[int]:
        """Give a request that waits a slot and blocks for all its tokens, those of `hit` first.

        One that `is_pinned` is not sent back for others any more.
        Returns: the blocks beside the hit.
        """
        self.waiting.remove(sequence, now)
        sums = None if sequence.was_admitted else self._sums(sequence, now)
        sequence.course.admit(self.running.num_steps, sums, now)
        self.running.admit(sequence)
        sequence.table.take(hit)
        new_block_ids = sequence.table.allocate(sequence.num_tokens)
        assert new_block_ids is not None, "it has been found to fit"
        num_found = len(hit) * self._pool.block_size
        sequence.num_computed = num_found
        if not sequence.was_admitted:
            sequence.was_admitted = True
            sequence.num_cached_tokens = num_found
            self.begun.num_prompt_tokens += sequence.num_prompt_tokens
            self.begun.num_cached_tokens += num_found
        self.running.prefilling_rows.join(sequence)
        self.charges.admit(sequence, now)
        sequence.is_guaranteed = self.waiting.has_waiting_above(sequence.request.band)
        self._shared_prefix.start(sequence, len(hit))
        num_tokens, band = sequence.num_tokens, sequence.request.band
        stays = band is not Band.BATCH and (is_pinned or sequence.is_guaranteed)
        self.running.kv_growth.admit(
            sequence.slot,
            num_tokens - num_found,
            expected_len - num_tokens,
            band=Band.PRIORITY if stays else band,
            place=self.running.holdings.place(sequence),
        )
        return new_block_ids

    def note_published(self, sequence: Sequence) -> None:
        """Note which of its blocks are found now: who waited for these need not any more."""
        self._shared_prefix.release(sequence, sequence.table.num_published)

    def release_followers(self, now: float) -> None:
        """Let those wait for a slot again who waited for blocks; to be called once a step."""
        for follower in self._shared_prefix.begin_step():
            self.queue(follower, now)

    def requeue(self, victim: Sequence, now: float) -> None:
        """Let a victim wait again, and those who waited for what it was computing."""
        self.preempted[victim.course.cause] += 1
        victim.course.send_back(now)
        self._shared_prefix.leave(victim)
        self.queue(victim, now)

    def drop_late(self, now: float) -> None:
        """End who waits in vain, long before its turn: its caller should know at once.

        To be called once a step. It ends `MAX_DROPPED` at most, half of them here and the others
        at their turn; what is left is for the next step.
        """
        self._num_to_drop = MAX_DROPPED
        self.running.holdings.forget(now)
        for sequence in self._expiry.take(now, at_most=MAX_DROPPED // 2):
            if self.is_late(sequence, now):
                self.drop(sequence, now)

    def promote_due(self, replicas: Replicas, now: float) -> None:
        """Move batch work to the band `due` whose window forces it up; to be called once a step."""
        for sequence in self.windows.take(now):
            # It came with weights of its band, and may have come before they were set anew.
            tenant = self.waiting.key_of(sequence).above
            sequence.request = replicas.moved(sequence.request, Band.DUE, tenant)
            self._promote(sequence, Band.DUE, now)

    def _promote(self, sequence: Sequence, band: Band, now: float) -> None:
        waits, was_held = sequence in self.waiting, sequence.is_held
        if waits:
            self.waiting.remove(sequence, now)
        elif was_held:
            # Whom it waits for may stay in the batch band, and get on no further.
            self._shared_prefix.leave(sequence)
        # What it has not had yet is served in the band that it goes to.
        unserved = self.charges.unserved(sequence)
        if unserved:
            self.waiting.charge(sequence, -unserved, now)
        self.waiting.expel(sequence)
        self.running.holdings.leave(sequence, now)
        sums = self._sums(sequence, now)
        self.running.promote(sequence, band)
        sequence.course.break_off(sums, self._sums(sequence, now))
        self.running.holdings.join(sequence, now)
        self.waiting.enrol(sequence, now)
        self.waiting.note_begin(sequence)
        if unserved:
            self.waiting.charge(sequence, unserved, now)
        if sequence.status is Status.RUNNING:
            self.running.decode_rows.accounts[sequence.slot] = sequence.account
        if waits:
            self.waiting.push(sequence, now)
        elif was_held:
            self.queue(sequence, now)

    def is_late(self, sequence: Sequence, now: float) -> bool:
        """Tell whether a request's time passed while it waited."""
        return self._admission.is_expired(sequence, now)

    def drop(self, sequence: Sequence, now: float) -> bool:
        """End a request that is late, unless this step has ended as many as it may."""
        if not self._num_to_drop:
            return False
        self._num_to_drop -= 1
        self.ended.num_expired += 1
        self._expired.append(self.end(sequence, FinishReason.EXPIRED, now))
        return True

    def take_expired(self) -> list[RequestOutput]:
        """Return the last outputs of those that were dropped since the last call."""
        expired, self._expired = self._expired, []
        return expired

    def end(
        self,
        sequence: Sequence,
        finish_reason: FinishReason,
        now: float,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        error: str | None = None,
        pooled: Many[float] | None = None,
    ) -> RequestOutput:
        """End a live request wherever it is, and free what it holds; returns its last output."""
        if sequence.status is Status.RUNNING:
            self.running.release(sequence, suspect=finish_reason is FinishReason.ERROR)
        elif sequence in self.waiting:
            self.waiting.remove(sequence, now)
        self.charges.end(sequence, now)
        if finish_reason is FinishReason.ERROR:
            sequence.num_prefilled = 0
        self.waiting.expel(sequence)
        self.running.holdings.leave(sequence, now)
        self.windows.leave(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.request_id]
        self._shared_prefix.leave(sequence)
        self._count(sequence, finish_reason)
        return sequence.output(
            token_ids,
            finish_reason,
            error,
            logprobs,
            facts=self._tell(sequence, now),
            pooled=pooled,
        )

    def fail(self, sequences: Iterable[Sequence], reason: str, now: float) -> list[RequestOutput]:
        """End those of the sequences that have not ended with an error; returns their outputs."""
        return [
            self.end(sequence, FinishReason.ERROR, now, error=reason)
            for sequence in sequences
            if sequence.status is not Status.FINISHED
        ]

    def forget_kv(self) -> list[Sequence]:
        """Take slots and blocks away from all after the engine did; returns who had them."""
        self._pool.reset()
        evicted = self.running.clear()
        for sequence in evicted:
            sequence.table.forget()
            sequence.lose_kv()
            sequence.num_prefilled = 0
        return evicted

    def lose_steps(
        self, rows: Iterable[Sequence], failed: Iterable[Sequence], reason: str, now: float
    ) -> list[RequestOutput]:
        """Queue everyone again but those that `failed`, after the engine forgot all KV.

        `rows` had steps in flight, whose tokens will be drawn again.
        Returns: the last outputs of those that failed and had not ended.
        """
        evicted = self.forget_kv()
        for sequence in evicted:
            self._shared_prefix.leave(sequence)
        outputs = self.fail(failed, reason, now)
        for sequence in evicted:
            if sequence.status is not Status.FINISHED:
                sequence.course.cause = PreemptionCause.FAULT
                self.preempted[PreemptionCause.FAULT] += 1
                sequence.course.send_back(now)
        # A row sent back earlier may have had a token in one of the lost steps.
        for sequence in rows:
            sequence.lose_in_flight()
        for sequence in self._sequences.values():
            self.queue(sequence, now)
        return outputs

    def _sums(self, sequence: Sequence, now: float) -> Sums:
        """Read what has kept requests like this one waiting."""
        return self.wait_clock.read(now, is_batch=sequence.request.band is Band.BATCH)

    def _tell(self, sequence: Sequence, now: float) -> RequestFacts:
        """Say what became of a request that ends."""
        course, num_output_tokens = sequence.course, sequence.num_output_tokens
        if num_output_tokens:
            course.draw(now)
        return course.tell(
            () if sequence.was_admitted else self._sums(sequence, now),
            now,
            num_cached_tokens=sequence.num_cached_tokens,
            num_output_tokens=num_output_tokens,
        )

    def _count(self, sequence: Sequence, finish_reason: FinishReason) -> None:
        """Learn how long outputs get from one that came to its own end, and count it."""
        if finish_reason in (FinishReason.STOP, FinishReason.LENGTH) and sequence.num_output_tokens:
            self._lengths.observe(
                sequence.request.tenant_id, sequence.num_prompt_tokens, sequence.num_output_tokens
            )
        ended = self.ended
        ended.num_finished += 1
        if sequence.was_admitted:
            ended.num_prompt_tokens += sequence.num_prompt_tokens
            ended.num_cached_tokens += sequence.num_cached_tokens
