"""What took a request's time: each second belongs to one cause, and one cause is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request_record import Cause, Explanation
from gateway.domain.timeline import Phase, Timeline
from gateway.services.requests.causes import LONG_STEP_S, explain
from gateway.telemetry import names
from scheduler.facts import Preempted, PreemptionCause, RequestFacts, WaitCause

BEGAN_S = 1000.0


def facts(
    *,
    queued_s: float = 0.1,
    admitted_s: float | None = 0.2,
    first_token_s: float | None = 0.3,
    ended_s: float = 1.0,
    **more: object,
) -> RequestFacts:
    """Make what a scheduler tells; times are after the request began."""

    def moment(after_s: float | None) -> float | None:
        return None if after_s is None else BEGAN_S + after_s

    return RequestFacts(  # type: ignore[arg-type]
        queued_s=BEGAN_S + queued_s,
        num_ahead=3,
        admitted_s=moment(admitted_s),
        first_token_s=moment(first_token_s),
        ended_s=BEGAN_S + ended_s,
        **more,
    )


def timeline(*generations: RequestFacts, ended_s: float = 1.0, **more: object) -> Timeline:
    """Make the timeline of a request that was answered after `ended_s`."""
    given = {"status": 200, "outcome": "completed", "output_tokens": 8} | more
    return Timeline(  # type: ignore[arg-type]
        "0" * 32, BEGAN_S, 0, facts=generations, ended_s=BEGAN_S + ended_s, **given
    )


def took(explained: Explanation) -> dict[Cause, float]:
    """Return the contributions, rounded to milliseconds."""
    return {one.cause: round(one.seconds, 3) for one in explained.contributions}


def test_a_request_alone_computes() -> None:
    """Its prompt and its tokens are its own; what lies around them is the gateway's."""
    explained = explain(timeline(facts()))
    assert explained.cause is Cause.COMPUTE
    assert took(explained) == {Cause.COMPUTE: 0.8, Cause.QUEUE: 0.1, Cause.GATEWAY: 0.1}
    assert explained.total_s == 1.0


@pytest.mark.parametrize(
    ("wait", "cause"),
    [
        (WaitCause.SLOTS, Cause.QUEUE),
        (WaitCause.BLOCKS, Cause.QUEUE),
        (WaitCause.PROMPTS, Cause.LONG_PROMPT),
        (WaitCause.BATCH, Cause.QUEUE),
        (WaitCause.STEP, Cause.QUEUE),
    ],
)
def test_a_wait_names_what_was_waited_for(wait: WaitCause, cause: Cause) -> None:
    """The scheduler's reason of the longest wait is the cause."""
    waited = facts(
        admitted_s=5.1, first_token_s=5.2, ended_s=6.0, waits_s={wait: 4.9, WaitCause.INTERVAL: 0.1}
    )
    explained = explain(timeline(waited, ended_s=6.0))
    assert explained.cause is cause
    assert took(explained)[cause] >= 4.9
    assert explained.sentence.startswith("4.9 of its 6 s ") or cause is Cause.QUEUE


@pytest.mark.parametrize(
    ("step_s", "num_tokens", "cause"),
    [
        (LONG_STEP_S, 4000, Cause.LONG_PROMPT),
        (LONG_STEP_S, 0, Cause.QUEUE),
        (LONG_STEP_S / 2, 4000, Cause.QUEUE),
    ],
)
def test_a_step_is_a_long_prompts_where_it_was_long_and_held_one(
    step_s: float, num_tokens: int, cause: Cause
) -> None:
    """Waiting for a step that only decodes, or was short, is nobody's long prompt."""
    waited = facts(
        admitted_s=2.1,
        first_token_s=2.2,
        ended_s=2.3,
        waits_s={WaitCause.STEP: 2.0},
        longest_step_s=step_s,
        longest_step_tokens=num_tokens,
    )
    explained = explain(timeline(waited, ended_s=2.3))
    assert explained.cause is cause
    assert ("4000 tokens" in explained.sentence) == (cause is Cause.LONG_PROMPT)


def test_prompts_that_went_first_are_others() -> None:
    """Of the steps from its slot to its first token, those without it were of others' prompts."""
    behind = facts(first_token_s=4.2, ended_s=4.3, num_chunks=1, num_prefill_steps=4)
    explained = explain(timeline(behind, ended_s=4.3))
    assert took(explained)[Cause.LONG_PROMPT] == 3.0
    assert explained.cause is Cause.LONG_PROMPT


def test_a_preemption_is_named_with_its_reason() -> None:
    """Time between being sent back and running again is the preemption's, before or after."""
    sent_back = Preempted(BEGAN_S + 0.5, PreemptionCause.BAND, BEGAN_S + 3.5)
    explained = explain(timeline(facts(ended_s=4.0, preemptions=(sent_back,)), ended_s=4.0))
    assert explained.cause is Cause.PREEMPTED
    assert took(explained)[Cause.PREEMPTED] == 3.0
    assert "band" in explained.sentence
    never = replace(sent_back, resumed_s=None)
    explained = explain(timeline(facts(ended_s=4.0, preemptions=(never,)), ended_s=4.0))
    assert took(explained)[Cause.PREEMPTED] == 3.5


def test_a_pause_for_a_grant_is_the_own_limit() -> None:
    """A row that paused for tokens was held by its limits; with the counters away, by those."""
    paused = facts(ended_s=9.0, rests_s={"paused": 6.0, "shared": 1.0})
    explained = explain(timeline(paused, ended_s=9.0))
    assert explained.cause is Cause.OWN_LIMIT
    assert took(explained)[Cause.OWN_LIMIT] == 6.0
    assert took(explained)[Cause.SHARED] == 1.0
    assert explain(timeline(paused, ended_s=9.0, is_degraded=True)).cause is Cause.STORE


def test_a_reader_is_slow_after_the_last_token_only() -> None:
    """A write that waited while tokens were drawn cost nothing; what is left is the reader's."""
    explained = explain(timeline(facts(), ended_s=8.0, stall_s=6.5))
    assert explained.cause is Cause.SLOW_READER
    assert took(explained)[Cause.SLOW_READER] == 6.5
    explained = explain(timeline(facts(), ended_s=1.0, stall_s=6.5))
    assert explained.cause is Cause.COMPUTE


@pytest.mark.parametrize(
    "phase",
    [
        Phase(names.AUTH, BEGAN_S, BEGAN_S + 3, {names.AUTH_CACHE: "database"}),
        Phase(names.RESERVE, BEGAN_S, BEGAN_S + 3),
        Phase(names.SETTLE, BEGAN_S + 4, BEGAN_S + 7),
    ],
)
def test_a_store_that_is_late_is_named(phase: Phase) -> None:
    """Keys from the database, reservations and their end are a store's time."""
    explained = explain(
        timeline(facts(queued_s=3, admitted_s=3, first_token_s=3.1, ended_s=4), ended_s=7.0)
    )
    assert explained.cause is Cause.GATEWAY
    late = timeline(
        facts(queued_s=3, admitted_s=3, first_token_s=3.1, ended_s=4), ended_s=7.0, phases=[phase]
    )
    assert explain(late).cause is Cause.STORE
    assert took(explain(late))[Cause.STORE] == 3.0


def test_a_key_from_memory_is_no_store() -> None:
    """Only a look-up in the database is the database's time."""
    phase = Phase(names.AUTH, BEGAN_S, BEGAN_S + 1, {names.AUTH_CACHE: "cache"})
    explained = explain(timeline(ended_s=1.0, phases=[phase]))
    assert took(explained) == {Cause.GATEWAY: 1.0}


@pytest.mark.parametrize(
    ("status", "code", "limit", "cause"),
    [
        (429, "rate_limit_exceeded", "rpm", Cause.OWN_LIMIT),
        (429, "insufficient_quota", "", Cause.OWN_LIMIT),
        (503, "overloaded", "", Cause.QUEUE),
        (503, "store_unavailable", "", Cause.STORE),
        (503, "quota_unavailable", "", Cause.STORE),
        (400, "invalid_value", "", None),
    ],
)
def test_a_refusal_names_who_refused(
    status: int, code: str, limit: str, cause: Cause | None
) -> None:
    """The tenant's limit, our room, a store, or what was asked for."""
    explained = explain(timeline(status=status, code=code, limit=limit, ended_s=0.01))
    assert explained.cause is cause
    assert code in explained.sentence
    assert limit in explained.sentence


def test_a_missed_first_token_is_judged_by_the_time_up_to_it() -> None:
    """Two seconds in the queue made it late, however long its answer was."""
    late = facts(admitted_s=2.1, first_token_s=2.2, ended_s=60.0, waits_s={WaitCause.SLOTS: 2.0})
    assert explain(timeline(late, ended_s=60.0)).cause is Cause.COMPUTE
    promised = timeline(late, ended_s=60.0, first_token_s=BEGAN_S + 2.2, ttft_slo_s=0.5)
    assert promised.missed() == {"ttft"}
    explained = explain(promised)
    assert explained.cause is Cause.QUEUE
    assert "a slot" in explained.sentence
    assert "3 ahead" in explained.sentence


def test_of_several_generations_the_last_decides() -> None:
    """The request was over when its slowest choice was."""
    quick, slow = facts(), facts(admitted_s=4.0, first_token_s=4.5, ended_s=5.0)
    assert explain(timeline(slow, quick, ended_s=5.0)).cause is Cause.QUEUE


def test_what_is_promised_of_a_token_is_missed() -> None:
    """Time between tokens is measured over the gaps of one choice."""
    request = timeline(
        facts(),
        ended_s=9.0,
        output_tokens=11,
        first_token_s=BEGAN_S + 1,
        last_token_s=BEGAN_S + 6,
        tpot_slo_s=0.4,
    )
    assert request.missed() == {"tpot"}
    request.tpot_slo_s = 0.6
    assert request.missed() == frozenset()


_moments = st.floats(0.0, 20.0)
_seconds = st.floats(0.0, 30.0)


@st.composite
def _any_facts(draw: st.DrawFn) -> RequestFacts:
    queued_s, admitted_s, first_s, ended_s = sorted(draw(st.tuples(*[_moments] * 4)))
    reached = draw(st.integers(0, 2))
    times = draw(st.lists(st.tuples(_moments, _moments | st.none()), max_size=3))
    return facts(
        queued_s=queued_s,
        admitted_s=admitted_s if reached > 0 else None,
        first_token_s=first_s if reached > 1 else None,
        ended_s=ended_s,
        num_chunks=draw(st.integers(0, 5)),
        num_prefill_steps=draw(st.integers(0, 5)),
        longest_step_s=draw(st.floats(0.0, 1.0)),
        longest_step_tokens=draw(st.integers(0, 5)),
        waits_s=draw(st.dictionaries(st.sampled_from(WaitCause), _seconds)),
        rests_s=draw(st.dictionaries(st.sampled_from(("paused", "preempted", "shared")), _seconds)),
        preemptions=tuple(
            Preempted(
                BEGAN_S + at_s,
                draw(st.sampled_from(PreemptionCause)),
                None if after_s is None else BEGAN_S + at_s + after_s,
            )
            for at_s, after_s in times
        ),
    )


_phases = st.builds(
    lambda name, at_s, took_s: Phase(name, BEGAN_S + at_s, BEGAN_S + at_s + took_s),
    st.sampled_from((names.AUTH, names.RESERVE, names.READ, "other")),
    _moments,
    _seconds,
)


@given(
    st.lists(_any_facts(), max_size=3),
    st.lists(_phases, max_size=4),
    _moments,
    _seconds,
    st.booleans(),
    st.sampled_from((0, 200, 400, 429, 503)),
)
def test_every_second_belongs_to_one_cause(
    generations: list[RequestFacts],
    phases: list[Phase],
    ended_s: float,
    stall_s: float,
    is_degraded: bool,
    status: int,
) -> None:
    """However moments overlap or contradict each other, the contributions are the whole time."""
    request = timeline(
        *generations,
        ended_s=ended_s,
        phases=phases,
        stall_s=stall_s,
        is_degraded=is_degraded,
        status=status,
        first_token_s=BEGAN_S + ended_s / 2,
        ttft_slo_s=0.1,
    )
    explained = explain(request)
    assert sum(one.seconds for one in explained.contributions) == pytest.approx(
        explained.total_s, abs=1e-6
    )
    assert all(one.seconds > 0 for one in explained.contributions)
    assert explained.sentence.endswith(".")
