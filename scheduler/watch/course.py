"""What has become of one request so far: the notes that its facts are made of when it ends.

Steps are counted where times would cost something for each row: whoever has a slot takes part in
each step or sits it out, so what it sat out is the steps in between less those that it was in, and
the time of that is as large a part of the time. A row that has drawn all that it was granted is
found to have paused when it goes on or ends: since the step that it was last in came back.
"""

from __future__ import annotations

from scheduler.facts import Preempted, PreemptionCause, RequestFacts, WaitCause
from scheduler.watch.step_times import StepTimes
from scheduler.watch.wait_clock import CAUSES, Sums


class Course:
    """Note what happens to a request; whoever moves it says so, in this order or none of it.

    `num_chunks` are the steps that had a part of its prompt, before it drew a token. `cause` is
    what it is being sent back for.
    """

    __slots__ = (
        "_decodes",
        "_held_from_s",
        "_held_s",
        "_longest_step_s",
        "_longest_step_tokens",
        "_num_in",
        "_num_paused",
        "_num_prefill_steps",
        "_num_shared_steps",
        "_num_steps",
        "_paused_from_s",
        "_paused_s",
        "_preemptions",
        "_seen_s",
        "_since_step",
        "_sums",
        "_sums_before",
        "_waits_s",
        "admitted_s",
        "cause",
        "first_token_s",
        "num_ahead",
        "num_chunks",
        "queued_s",
    )

    def __init__(self) -> None:
        self.queued_s = self._seen_s = 0.0
        self.num_ahead = self.num_chunks = 0
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.cause = PreemptionCause.BLOCKS
        self._sums: Sums = ()
        self._sums_before: Sums = ()
        # Of stretches that are over, where it was held or changed its band.
        self._waits_s: list[float] | None = None
        self._held_from_s: float | None = None
        self._held_s = 0.0
        self._longest_step_s = 0.0
        self._longest_step_tokens = 0
        # Since it had a slot, or has begun to decode: from which step on, and in how many it was.
        self._decodes = False
        self._since_step = self._num_in = self._num_paused = 0
        self._num_prefill_steps = self._num_steps = self._num_shared_steps = 0
        self._paused_from_s: float | None = None
        self._paused_s = 0.0
        self._preemptions: list[Preempted] | None = None

    def queue(self, num_ahead: int, sums: Sums, now: float) -> None:
        """Begin to wait behind so many others."""
        self.queued_s = self._seen_s = now
        self.num_ahead = num_ahead
        self._sums_before = sums

    @property
    def is_held(self) -> bool:
        """Tell whether it waits for another that computes its prompt, and never had a slot."""
        return self._held_from_s is not None

    @property
    def is_paused(self) -> bool:
        """Tell whether it was found to have paused and has not gone on."""
        return self._paused_from_s is not None

    def hold(self, sums: Sums, now: float) -> None:
        """Wait for another that computes its prompt."""
        if self.admitted_s is None:
            self.break_off(sums, sums)
            self._held_from_s = now

    def let_go(self, sums: Sums, now: float) -> None:
        """Wait for a slot again, if it was held."""
        if self._held_from_s is not None:
            self._held_s += now - self._held_from_s
            self._held_from_s = None
            self._sums_before = sums

    def break_off(self, sums: Sums, sums_after: Sums) -> None:
        """Go on waiting by other sums."""
        if self.admitted_s is None and self._held_from_s is None:
            self._waits_s = self._waited_s(sums)
            self._sums_before = sums_after

    def admit(self, step: int, sums: Sums | None, now: float) -> None:
        """Have a slot from `step` on; the `sums` are asked for the first time alone."""
        self._since_step, self._num_in, self._num_paused = step, 0, 0
        if self.admitted_s is None:
            assert sums is not None
            self.admitted_s, self._sums = now, sums
        elif self._preemptions:
            last = self._preemptions[-1]
            self._preemptions[-1] = Preempted(last.at_s, last.cause, now)

    def note_chunk(self) -> None:
        """Be in a step with a part of its prompt, or of what is computed again."""
        self._num_in += 1
        if not self._decodes:
            self.num_chunks += 1

    def begin_decoding(self, step: int) -> None:
        """Draw a token in `step`, which has been counted."""
        if not self._decodes:
            self._decodes = True
            self._num_prefill_steps += step + 1 - self._since_step
            self._since_step, self._num_in = step + 1, 0

    def draw(self, now: float) -> None:
        """Have a token, which may be the first."""
        if self.first_token_s is None:
            self.first_token_s = now

    def leave(self, step: int, num_decodes: int) -> None:
        """Have no slot from `step` on, having decoded in so many steps since it had one."""
        num_steps = step - self._since_step
        if self._decodes:
            num_steps = max(0, num_steps - self._num_paused)
            self._num_steps += num_steps
            self._num_shared_steps += max(0, num_steps - self._num_in - num_decodes)
        else:
            self._num_prefill_steps += num_steps

    def pause(self, since_s: float, num_steps: int) -> None:
        """Be found to have paused since then, through so many steps."""
        self._paused_from_s = since_s
        self._num_paused += num_steps

    def end_pause(self, now: float) -> None:
        """Go on, if it paused."""
        if self._paused_from_s is not None:
            self._paused_s += now - self._paused_from_s
            self._paused_from_s = None

    def sit_through(self, steps: StepTimes, now: float) -> None:
        """Note the longest of the steps since it was queued, or since one of its own came back.

        To be told when one of its own comes back, before that is among the `steps`.
        """
        if steps.last_s > self._seen_s:
            long = steps.longest_since(self._seen_s)
            if long is not None and long.took_s > self._longest_step_s:
                self._longest_step_s = long.took_s
                self._longest_step_tokens = long.num_prefill_tokens
        self._seen_s = now

    def send_back(self, now: float) -> None:
        """Lose its slot, for `cause`."""
        self.end_pause(now)
        if self._preemptions is None:
            self._preemptions = []
        self._preemptions.append(Preempted(now, self.cause))

    def tell(
        self, sums: Sums, now: float, *, num_cached_tokens: int, num_output_tokens: int
    ) -> RequestFacts:
        """Say what became of it, which ends now; `sums` are as of now."""
        self.end_pause(now)
        first_token_s = self.first_token_s
        preemptions = () if self._preemptions is None else tuple(self._preemptions)
        return RequestFacts(
            queued_s=self.queued_s,
            num_ahead=self.num_ahead,
            admitted_s=self.admitted_s,
            first_token_s=first_token_s,
            ended_s=now,
            waits_s=self._tell_waits(sums, now),
            rests_s={} if first_token_s is None else self._tell_rests(first_token_s, now),
            num_chunks=self.num_chunks,
            num_prefill_steps=self._num_prefill_steps,
            longest_step_s=self._longest_step_s,
            longest_step_tokens=self._longest_step_tokens,
            num_cached_tokens=num_cached_tokens,
            num_output_tokens=num_output_tokens,
            preemptions=preemptions,
        )

    def _waited_s(self, sums: Sums) -> list[float]:
        waited_s = [after - before for after, before in zip(sums, self._sums_before, strict=True)]
        if self._waits_s is None:
            return waited_s
        return [a + b for a, b in zip(waited_s, self._waits_s, strict=True)]

    def _tell_waits(self, sums: Sums, now: float) -> dict[WaitCause, float]:
        held_s = self._held_s
        if self._held_from_s is not None:
            held_s += now - self._held_from_s
            sums = self._sums_before
        waits_s: dict[WaitCause, float] = {}
        if self.admitted_s != self.queued_s:
            waited_s = self._waited_s(sums if self.admitted_s is None else self._sums)
            waits_s = {
                cause: span_s for cause, span_s in zip(CAUSES, waited_s, strict=True) if span_s
            }
        if held_s > 0.0:
            waits_s[WaitCause.HELD] = held_s
        return waits_s

    def _tell_rests(self, first_token_s: float, now: float) -> dict[str, float]:
        rests_s: dict[str, float] = {}
        preempted_s = 0.0
        if self._preemptions is not None:
            for sent in self._preemptions:
                until_s = now if sent.resumed_s is None else sent.resumed_s
                preempted_s += max(0.0, until_s - max(sent.at_s, first_token_s))
            if preempted_s > 0.0:
                rests_s["preempted"] = preempted_s
        if self._paused_s > 0.0:
            rests_s["paused"] = self._paused_s
        if self._num_shared_steps:
            ran_s = now - first_token_s - preempted_s - self._paused_s
            if ran_s > 0.0:
                rests_s["shared"] = ran_s * self._num_shared_steps / self._num_steps
        return rests_s
