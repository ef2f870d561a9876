"""Why a request took as long as it did: each of its seconds belongs to one cause.

A timeline's moments overlap: a client that reads slowly does so while tokens are drawn. So time is
taken from a line that has each second once, by the strongest claim first: what the scheduler says
(sent back, waiting, drawing), then the gateway's phases, then what a client that did not read added
after the last token. Nobody's time is the gateway's own.

Of several generations the one that ended last decides. One main cause is named: a wait that made
up a quarter of the time, or else whatever took most; a request that computed long because it
asked for much is no victim of a short wait. Where the time to the first token was promised and
missed, only the time up to that token counts for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from gateway.domain.request_record import Cause, Contribution, Explanation
from gateway.domain.timeline import Phase, Timeline
from gateway.telemetry import names
from scheduler.facts import RequestFacts, WaitCause

# Of a request's time, from which a wait is what made it slow.
MAIN_SHARE: Final = 0.25
# A step that was waited for is called long from so much on, where it computed prompts.
LONG_STEP_S: Final = 0.02

_OF_WAIT: Final = {
    WaitCause.STEP: Cause.QUEUE,
    WaitCause.SLOTS: Cause.QUEUE,
    WaitCause.BLOCKS: Cause.QUEUE,
    WaitCause.PROMPTS: Cause.LONG_PROMPT,
    WaitCause.INTERVAL: Cause.QUEUE,
    WaitCause.HELD: Cause.QUEUE,
    WaitCause.BATCH: Cause.QUEUE,
}
_ITS_OWN: Final[Collection[Cause]] = (Cause.COMPUTE, Cause.GATEWAY)
_OF_PHASE: Final[Mapping[str, Cause]] = {
    names.ENTER: Cause.STORE,
    names.CLAIM: Cause.STORE,
    names.KEEP: Cause.STORE,
    names.RESERVE: Cause.STORE,
    names.SETTLE: Cause.STORE,
    names.READ: Cause.SLOW_SENDER,
}
_STORE_CODES: Final = frozenset(("store_unavailable", "quota_unavailable", "storage_unavailable"))

_Seconds = Mapping[Cause, float]


def explain(timeline: Timeline) -> Explanation:
    """Say what took a request's time, and name the main cause."""
    ended_s = _end_of(timeline)
    seconds = _shares(timeline, ended_s)
    found = [Contribution(cause, took_s) for cause, took_s in seconds.items() if took_s > 0]
    found.sort(key=lambda one: (-one.seconds, one.cause))
    cause, sentence = _refusal(timeline) or _main(timeline, seconds, ended_s)
    return Explanation(cause, sentence, ended_s - timeline.began_s, tuple(found))


def _end_of(timeline: Timeline) -> float:
    return max(timeline.began_s, timeline.ended_s or timeline.began_s)


def _shares(timeline: Timeline, until_s: float) -> _Seconds:
    """Give each second up to `until_s` to a cause."""
    line = _Line(timeline.began_s, until_s)
    seconds: dict[Cause, float] = defaultdict(float)
    last = max(timeline.facts, key=lambda facts: facts.ended_s, default=None)
    if last is not None:
        of_pauses = Cause.STORE if timeline.is_degraded else Cause.OWN_LIMIT
        _take_generation(line, seconds, last, of_pauses)
    for phase in timeline.phases:
        cause = _cause_of(phase)
        if cause is not None:
            seconds[cause] += line.take(phase.begin_s, phase.end_s)
    if timeline.stall_s > 0:
        drawn_s = timeline.began_s if last is None else last.ended_s
        seconds[Cause.SLOW_READER] += line.take(drawn_s, until_s, at_most_s=timeline.stall_s)
    seconds[Cause.GATEWAY] += line.take(timeline.began_s, until_s)
    return seconds


def _take_generation(
    line: _Line, seconds: dict[Cause, float], facts: RequestFacts, of_pauses: Cause
) -> None:
    """Take what the scheduler says of; pauses for grants are `of_pauses`'."""
    for preempted in facts.preemptions:
        resumed_s = facts.ended_s if preempted.resumed_s is None else preempted.resumed_s
        seconds[Cause.PREEMPTED] += line.take(preempted.at_s, resumed_s)
    admitted_s = facts.ended_s if facts.admitted_s is None else facts.admitted_s
    _take_wait(seconds, facts, line.take(facts.queued_s, admitted_s))
    if facts.admitted_s is None:
        return
    first_s = facts.ended_s if facts.first_token_s is None else facts.first_token_s
    prefill_s, num_steps = line.take(facts.admitted_s, first_s), facts.num_prefill_steps
    own_share = min(1.0, facts.num_chunks / num_steps) if num_steps else 1.0
    seconds[Cause.COMPUTE] += prefill_s * own_share
    # It had a slot, and the prompts of others went first.
    seconds[Cause.LONG_PROMPT] += prefill_s * (1.0 - own_share)
    drawing_s = line.take(first_s, facts.ended_s)
    for rest, cause in (("paused", of_pauses), ("shared", Cause.SHARED)):
        rested_s = min(drawing_s, facts.rests_s.get(rest, 0.0))
        seconds[cause] += rested_s
        drawing_s -= rested_s
    seconds[Cause.COMPUTE] += drawing_s


def _take_wait(seconds: dict[Cause, float], facts: RequestFacts, waited_s: float) -> None:
    """Split the wait for a slot by what was waited for; what is not told is the queue's."""
    told_s = sum(facts.waits_s.values())
    scale = min(1.0, waited_s / told_s) if told_s > 0 else 0.0
    is_long = facts.longest_step_s >= LONG_STEP_S and facts.longest_step_tokens > 0
    for wait, wait_s in facts.waits_s.items():
        cause = _OF_WAIT[wait]
        if wait is WaitCause.STEP and is_long:
            cause = Cause.LONG_PROMPT
        seconds[cause] += wait_s * scale
    seconds[Cause.QUEUE] += max(0.0, waited_s - told_s * scale)


def _cause_of(phase: Phase) -> Cause | None:
    if phase.name == names.AUTH:
        # A key that is known is found in memory.
        is_known = (phase.detail or {}).get(names.AUTH_CACHE, "cache") == "cache"
        return None if is_known else Cause.STORE
    return _OF_PHASE.get(phase.name)


def _refusal(timeline: Timeline) -> tuple[Cause | None, str] | None:
    """Say why a request was refused; None: it was not, or for what it cost in time."""
    status, code = timeline.status, timeline.code or "no code"
    if code in _STORE_CODES:
        return Cause.STORE, f"A store did not answer, and the request ended with {code}."
    if status == 429:
        limit = f"its limit '{timeline.limit}'" if timeline.limit else "a limit of its own"
        return Cause.OWN_LIMIT, f"It was refused by {limit} ({code})."
    if status in (503, 529):
        return Cause.QUEUE, f"It was refused for want of room ({code})."
    if 400 <= status < 500 and not timeline.facts:
        return None, f"It was refused for what it asked for ({code})."
    return None


def _main(timeline: Timeline, seconds: _Seconds, ended_s: float) -> tuple[Cause, str]:
    judged, until_s, ending = seconds, ended_s, ""
    if "ttft" in timeline.missed() and timeline.first_token_s is not None:
        until_s, ending = min(timeline.first_token_s, ended_s), " up to its first token"
        judged = _shares(timeline, until_s)
    total_s = until_s - timeline.began_s
    waits = {one: took_s for one, took_s in judged.items() if one not in _ITS_OWN}
    cause: Cause = max(waits, key=lambda one: waits[one], default=Cause.GATEWAY)
    if not waits or waits[cause] < MAIN_SHARE * total_s or waits[cause] <= 0:
        cause = max(judged, key=lambda one: judged[one])
    took = f"{judged[cause]:.3g} of its {total_s:.3g} s{ending}"
    return cause, f"{took} {_sentence(cause, timeline)}"


def _sentence(cause: Cause, timeline: Timeline) -> str:
    last = max(timeline.facts, key=lambda facts: facts.ended_s, default=None)
    match cause:
        case Cause.OWN_LIMIT:
            return "it paused until its own limits granted more tokens."
        case Cause.QUEUE:
            ahead = 0 if last is None else last.num_ahead
            what = _scarce(last)
            return f"it waited for {what}, {ahead} ahead of it when it came."
        case Cause.LONG_PROMPT:
            return f"it waited while prompts of others filled the steps{_longest(last)}."
        case Cause.PREEMPTED:
            times = () if last is None else last.preemptions
            why = ", ".join(sorted({one.cause.value for one in times})) or "unknown"
            return f"it was sent back for others, {len(times)} times in all, for: {why}."
        case Cause.SHARED:
            return "it sat out steps in which others had their shares."
        case Cause.SLOW_READER:
            return "what was written waited for its client to read."
        case Cause.SLOW_SENDER:
            return "its client took to send it."
        case Cause.STORE:
            return "went to stores: keys, limits or the ledger were late or away."
        case Cause.COMPUTE:
            num_tokens = f"{timeline.input_tokens} and {timeline.output_tokens} tokens"
            return f"went to computing its own prompt and answer, {num_tokens}."
        case Cause.GATEWAY:
            return "went to reading, understanding and answering it."


def _longest(facts: RequestFacts | None) -> str:
    if facts is None or not facts.longest_step_tokens:
        return ""
    step_s, num_tokens = facts.longest_step_s, facts.longest_step_tokens
    return f", the longest of which took {step_s:.3g} s for {num_tokens} tokens"


def _scarce(facts: RequestFacts | None) -> str:
    """Name what those who waited lacked the longest."""
    waits = {} if facts is None else facts.waits_s
    queued = {wait: took_s for wait, took_s in waits.items() if _OF_WAIT[wait] is Cause.QUEUE}
    longest = max(queued, key=lambda wait: queued[wait], default=None)
    names = {
        WaitCause.SLOTS: "a slot",
        WaitCause.BLOCKS: "KV blocks",
        WaitCause.HELD: "another with the same prompt",
        WaitCause.BATCH: "online work to leave room for batches",
    }
    return names.get(longest, "its turn") if longest is not None else "its turn"


class _Line:
    """Hold a stretch of time, each part of which can be taken once."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self._free = [(begin_s, end_s)] if end_s > begin_s else []

    def take(self, begin_s: float, end_s: float, *, at_most_s: float | None = None) -> float:
        """Take what is left between two moments, the earliest first; return how much it was."""
        taken_s, free = 0.0, []
        for left_s, right_s in self._free:
            from_s, to_s = max(left_s, begin_s), min(right_s, end_s)
            if at_most_s is not None:
                to_s = min(to_s, from_s + at_most_s - taken_s)
            if to_s <= from_s:
                free.append((left_s, right_s))
                continue
            taken_s += to_s - from_s
            free += [part for part in ((left_s, from_s), (to_s, right_s)) if part[1] > part[0]]
        self._free = free
        return taken_s
