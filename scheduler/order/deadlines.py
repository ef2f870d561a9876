"""When things are due: the times that promises set, on the scheduler's clock.

A promise (`Slo`) names durations. What they mean for a request, as times, is said here alone, so
that who is next, how much a step may compute, who is refused and who is dropped all go by the
same ones.

Token k is due `k * tpot_s` after the first one came, so that the mean over a request is what was
promised: tokens that come early buy time for later ones, but a first one that came early buys
nothing. With a promise per gap it is also due `max_gap_s` after the
last one, which `scheduler.running.pace` adds. What is not promised is never due.
"""

from __future__ import annotations

import math

from scheduler.request import Request
from scheduler.sequence import Sequence

NEVER = math.inf


def first_due_s(request: Request, *, unless_promised_s: float = NEVER) -> float:
    """Say when the first token is due: `unless_promised_s` after the arrival without a promise."""
    ttft_s = request.slo.ttft_s
    return request.arrival_s + (unless_promised_s if ttft_s is None else ttft_s)


def given_up_s(request: Request) -> float:
    """Say from when on nobody waits for the first token any more."""
    ends = (first_due_s(request), request.expires_s, request.finish_by_s)
    return min(end_s for end_s in ends if end_s is not None)


def next_due_s(sequence: Sequence, *, best_effort_ttft_s: float) -> float:
    """Say when the next token of a request that waits is due, which may have run before.

    One without a promise counts as promised within `best_effort_ttft_s`, or where it has a window,
    by the end of that.
    """
    request = sequence.request
    if request.finish_by_s is not None and request.slo.ttft_s is None:
        return request.finish_by_s
    due_s = first_due_s(request, unless_promised_s=best_effort_ttft_s)
    if sequence.first_token_s is None:
        return due_s
    return sequence.first_token_s + (request.slo.tpot_s or 0.0) * sequence.num_output_tokens


def start_by_s(request: Request, due_s: float, prefill_s: float) -> float:
    """Say by when a prefill of `prefill_s` must begin to be in time at `due_s`, with some room."""
    return NEVER if request.slo.ttft_s is None else due_s - 2 * prefill_s


def paced_s(sequence: Sequence) -> float:
    """Say when the next token is due by the promise per token, once the first has come."""
    request, begin_s = sequence.request, sequence.first_token_s
    assert begin_s is not None, "the pace counts from the first token"
    if request.slo.tpot_s is None:
        return NEVER
    return begin_s + request.slo.tpot_s * max(1, sequence.num_output_tokens)
