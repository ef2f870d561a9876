"""What one call of the scheduler takes where a tenant has made it as large as it can.

Offers beside thousands of keys of one tenant, which all wait; plans while thousands of requests
have run out of time at once, and while thousands share a prompt; the offer of a prompt as long as a
model takes, hashed beforehand as the service does it. No step of anybody else should wait a
millisecond for any of these. Thread CPU time, as in `scheduler.bench.scheduler_bench`.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import replace

from engine.contract import EngineInfo, SamplingParams
from engine.step_cost import load_profile
from scheduler.bench.null_engine import NullEngine
from scheduler.config import PRESETS
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.request import Admit, Request, Slo
from scheduler.sequence import Sequence

_NUM_TIMED = 50
_NUM_PROMPTS = 5
_LONG_PROMPT = 120_000
_PROFILE = "a100-llama-3-8b"


def measure_spikes(num_requests: int) -> dict[str, list[float]]:
    """Time each kind of call, in µs, with `num_requests` that wait."""
    return {
        "offer_beside_keys": _offers_beside_keys(num_requests),
        "plan_with_expired": _plans_with_expired(num_requests),
        "plan_with_followers": _plans_with_followers(num_requests),
        "offer_long_prompt": _offers_of_long_prompts(),
    }


def _offers_beside_keys(num_keys: int) -> list[float]:
    scheduler = _open(2 * (num_keys + _NUM_TIMED))
    for number in range(num_keys):
        _take_in(scheduler, _request(number, key=f"key-{number}"))
    promised = Slo(ttft_s=1e9)
    later = range(num_keys, num_keys + _NUM_TIMED)
    requests = [_request(number, key=f"key-{number}", slo=promised) for number in later]
    return [_offer_us(scheduler, request, None) for request in requests]


def _plans_with_expired(num_expired: int) -> list[float]:
    scheduler = _open(2 * num_expired)
    engine = NullEngine(scheduler.info, load_profile(_PROFILE))
    for number in range(scheduler.info.max_num_seqs):
        _take_in(scheduler, _request(number, num_output_tokens=1_000))
    # All rows are taken before anybody else comes.
    for _ in range(4):
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.report(engine.collect(engine.launch(plan)), 0.0)
    for number in range(num_expired):
        _take_in(scheduler, _request(1_000_000 + number, expires_s=1.0))
    times: list[float] = []
    for _ in range(_NUM_TIMED):
        before_ns = time.thread_time_ns()
        plan = scheduler.plan(2.0)
        times.append((time.thread_time_ns() - before_ns) / 1000)
        assert plan is not None
        if not scheduler.take_expired():
            break
        scheduler.report(engine.collect(engine.launch(plan)), 2.0)
    return times


def _plans_with_followers(num_followers: int) -> list[float]:
    """Time for each of some prompts the plan that holds, and the one that lets go."""
    scheduler = _open(2 * num_followers)
    engine = NullEngine(scheduler.info, load_profile(_PROFILE))
    # What it takes to begin many is another thing: there are two slots.
    for number in range(scheduler.info.max_num_seqs - 2):
        _take_in(scheduler, _request(number, num_output_tokens=1_000))
    for _ in range(4):
        _timed_step_us(scheduler, engine)
    times: list[float] = []
    for prompt in range(_NUM_PROMPTS):
        numbers = range(1_000_000, 1_000_001 + num_followers)
        for number in numbers:
            _take_in(scheduler, _request(number, token_id=1_000 + prompt, num_prompt_tokens=200))
        times += [_timed_step_us(scheduler, engine) for _ in range(2)]
        for number in numbers:
            scheduler.cancel(str(number), 0.0)
    return times


def _timed_step_us(scheduler: Scheduler, engine: NullEngine) -> float:
    before_ns = time.thread_time_ns()
    plan = scheduler.plan(0.0)
    took_us = (time.thread_time_ns() - before_ns) / 1000
    assert plan is not None
    scheduler.report(engine.collect(engine.launch(plan)), 0.0)
    return took_us


def _offers_of_long_prompts() -> list[float]:
    scheduler = _open(2 * _NUM_TIMED, max_model_len=2 * _LONG_PROMPT)
    times = []
    for number in range(_NUM_TIMED):
        request = _request(number, num_prompt_tokens=_LONG_PROMPT)
        prepared = scheduler.prepare(request)
        assert prepared is not None
        times.append(_offer_us(scheduler, request, prepared))
    return times


def _open(max_num_queued: int, *, max_model_len: int = 4096) -> Scheduler:
    mixed = PRESETS["mixed"]
    info = EngineInfo(
        model_type="null",
        vocab_size=1 << 16,
        max_model_len=max_model_len,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        num_blocks=max(256 * 70, max_model_len // 16),
        block_size=16,
        eos_token_ids=frozenset(),
    )
    admission = replace(mixed.admission, max_num_queued=2 * max_num_queued + info.max_num_seqs)
    # Predictions are asked for where the model knows its engine.
    model = StepModel(load_profile(_PROFILE))
    return Scheduler(info, replace(mixed, admission=admission), step_model=model)


def _request(
    number: int,
    *,
    key: str = "key",
    token_id: int | None = None,
    num_prompt_tokens: int = 20,
    num_output_tokens: int = 16,
    slo: Slo | None = None,
    expires_s: float | None = None,
) -> Request:
    return Request(
        request_id=str(number),
        tenant_id="tenant",
        key_id=key,
        prompt_token_ids=array("i", [number if token_id is None else token_id]) * num_prompt_tokens,
        params=SamplingParams(max_tokens=num_output_tokens, ignore_eos=True),
        cache_salt=b"tenant",
        arrival_s=0.0,
        slo=slo or Slo(),
        expires_s=expires_s,
    )


def _take_in(scheduler: Scheduler, request: Request) -> None:
    answer = scheduler.offer(request, 0.0)
    assert isinstance(answer, Admit), answer.reason


def _offer_us(scheduler: Scheduler, request: Request, prepared: Sequence | None) -> float:
    before_ns = time.thread_time_ns()
    answer = scheduler.offer(request, 0.0, prepared)
    took_us = (time.thread_time_ns() - before_ns) / 1000
    assert isinstance(answer, Admit), answer.reason
    return took_us
