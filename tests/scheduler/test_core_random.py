"""The scheduler under random use, in virtual time, with the simulated engine as the referee.

The engine asserts that each plan is feasible; the machine here asserts what requests are owed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fakes
from fakes import Driver
from scheduler.request import Admit, Band, FinishReason, Request
from tests.histories import num_histories

BLOCK_SIZE = 2
MAX_MODEL_LEN = 24


@dataclass
class Prefilled:
    """Say how far plans brought a prompt: since the last fault, and ever; and what it found."""

    since_fault: int = 0
    ever: int = 0
    found: int | None = None

    def reach(self, num_tokens: int) -> None:
        self.since_fault = max(self.since_fault, num_tokens)
        self.ever = max(self.ever, num_tokens)


class SchedulerMachine(RuleBasedStateMachine):
    """Offers, cancels, grants and faults between steps, with hardly any room for anyone."""

    driver: Driver

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, Request] = {}
        self.cancelled: set[str] = set()
        self.denied: dict[str, int] = {}
        self.granted: dict[str, int | None] = {}
        self.prefilled: dict[str, Prefilled] = defaultdict(Prefilled)
        self.request_of_slot: dict[int, str] = {}
        self.num_noted = 0
        self.told: set[str] = set()

    @initialize(
        depth=st.sampled_from([1, 2]),
        num_blocks=st.integers(1, 14),
        max_num_seqs=st.integers(1, 5),
        budget=st.sampled_from([1, 2, 3, 7, 40]),
        caching=st.booleans(),
        has_eos=st.booleans(),
    )
    def begin(
        self,
        depth: int,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        caching: bool,
        has_eos: bool,
    ) -> None:
        """Make an engine that is small in every way."""
        engine = fakes.make_engine(
            vocab_size=12,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            eos_token_ids=frozenset({0}) if has_eos else frozenset(),
            depth=depth,
        )
        self.driver = Driver(engine, prefix_caching=caching)

    @rule(
        # Two token ids and two salts, so that prefixes are often shared.
        prompt=st.lists(st.integers(1, 2), min_size=1, max_size=12),
        max_tokens=st.integers(1, 12),
        seed=st.integers(0, 5),
        band=st.sampled_from(Band),
        salt=st.sampled_from([b"acme", b"globex"]),
        granted=st.none() | st.integers(1, 6),
        stops=st.booleans(),
    )
    def offer(
        self,
        prompt: list[int],
        max_tokens: int,
        seed: int,
        band: Band,
        salt: bytes,
        granted: int | None,
        stops: bool,
    ) -> None:
        """Offer a request; only one that cannot fit is refused."""
        request = fakes.make_request(
            f"r{len(self.requests)}",
            prompt=prompt,
            max_tokens=max_tokens,
            seed=seed,
            band=band,
            salt=salt,
            arrival_s=self.driver.now,
            granted_tokens=granted,
            stop_token_ids=(5,) if stops else (),
        )
        answer = self.driver.offer(request)
        info = self.driver.engine.info
        fits = len(prompt) + 1 <= min(info.max_model_len, info.num_blocks * BLOCK_SIZE)
        assert isinstance(answer, Admit) == (fits and len(prompt) + max_tokens <= MAX_MODEL_LEN)
        if isinstance(answer, Admit):
            self.requests[request.request_id] = request
            self.granted[request.request_id] = granted

    @rule(seed=st.integers(0, 2**32), num_requests=st.integers(2, 8))
    def offer_many(self, seed: int, num_requests: int) -> None:
        """Offer a crowd: preemption, sharing and full budgets are rare otherwise."""
        rng = random.Random(seed)
        for _ in range(num_requests):
            self.offer(
                prompt=[rng.choice((1, 1, 1, 2)) for _ in range(rng.randint(1, 9))],
                max_tokens=rng.randint(1, 12),
                seed=rng.randint(0, 5),
                band=rng.choice(list(Band)),
                salt=rng.choice((b"acme", b"globex")),
                granted=rng.choice((None, None, rng.randint(1, 6))),
                stops=rng.random() < 0.3,
            )

    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        """Let the engine run."""
        for _ in range(num_steps):
            limits, num_plans = self.driver.scheduler.snapshot(), len(self.driver.plans)
            self.driver.turn()
            for plan in self.driver.plans[num_plans:]:
                assert plan.num_tokens <= limits.max_step_tokens
                assert len(plan.decodes) + len(plan.slices) <= limits.max_step_rows

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel a live request."""
        if live := self.live():
            request_id = data.draw(st.sampled_from(live))
            output = self.driver.scheduler.cancel(request_id, self.driver.now)
            assert output is not None
            self.driver.take([output])
            self.cancelled.add(request_id)

    @rule(data=st.data(), more=st.none() | st.integers(1, 5))
    def extend(self, data: st.DataObject, more: int | None) -> None:
        """Raise the grant of a live request."""
        if live := [r for r in self.live() if self.granted[r] is not None]:
            request_id = data.draw(st.sampled_from(live))
            self.raise_grant(request_id, more)

    @rule(data=st.data())
    def deny(self, data: st.DataObject) -> None:
        """Deny a live request any more than its grant."""
        if live := [r for r in self.live() if self.granted[r] is not None]:
            request_id = data.draw(st.sampled_from(live))
            granted = self.granted[request_id]
            assert granted is not None
            self.denied.setdefault(request_id, granted)
            self.granted[request_id] = None
            output = self.driver.scheduler.finish_granted(request_id, self.driver.now)
            self.driver.take([] if output is None else [output])

    @rule(in_flight=st.booleans(), lacks_memory=st.booleans())
    def fault(self, in_flight: bool, lacks_memory: bool) -> None:
        """Let the step in flight fail or find no memory, if there is one, or the next one."""
        driver = self.driver
        if not (in_flight and driver.handles):
            plan = driver.scheduler.plan(driver.now)
            if plan is None:
                return
            driver.plans.append(plan)
        self.note_plans()
        for prefilled in self.prefilled.values():
            prefilled.since_fault = 0
        step_id, live = driver.plans[-1].step_id, self.live()
        if lacks_memory and driver.lack_memory(step_id):
            assert self.live() == live, "nobody ends where memory is short"
        else:
            driver.fail(step_id)
        snapshot = driver.scheduler.snapshot()
        assert snapshot.free_blocks == snapshot.total_blocks

    @invariant()
    def tokens_are_those_of_a_run_alone(self) -> None:
        """What was generated so far is a prefix of what the request gets when it runs alone."""
        for request_id, request in self.requests.items():
            tokens = self.driver.tokens[request_id]
            expected, _ = fakes.expected_tokens(request, self.driver.engine.info)
            assert tokens == expected[: len(tokens)]
            granted = self.denied.get(request_id, self.granted[request_id])
            assert granted is None or len(tokens) <= granted

    @invariant()
    def prompts_that_ended_say_what_was_done(self) -> None:
        """All that plans computed or found of a prompt, once each; but what a fault has taken."""
        if not self.requests:
            return
        self.note_plans()
        ended = self.requests.keys() - self.told - set(self.live())
        self.told |= ended
        for request_id in ended:
            done, last = self.prefilled[request_id], self.driver.last[request_id]
            num_prompt_tokens = len(self.requests[request_id].prompt_token_ids)
            assert last.num_cached_tokens == (done.found or 0)
            if last.num_output_tokens:
                assert last.num_prefilled_tokens == num_prompt_tokens
            elif last.finish_reason is FinishReason.ERROR:
                assert last.num_prefilled_tokens == 0
            else:
                assert done.since_fault <= last.num_prefilled_tokens <= done.ever
                assert done.ever <= num_prompt_tokens

    @invariant()
    def blocks_are_held_by_requests_only(self) -> None:
        """No request running means that every block is free."""
        if self.requests:
            snapshot = self.driver.scheduler.snapshot()
            assert snapshot.running or snapshot.free_blocks == snapshot.total_blocks
            assert snapshot.running + snapshot.queued == len(self.live())

    def teardown(self) -> None:
        """Answer every grant and run dry: each request ends as it is owed, all blocks are back."""
        if not self.requests:
            return
        for request_id in self.live():
            if self.granted[request_id] is not None:
                self.raise_grant(request_id, None)
        self.driver.run()
        assert self.live() == []
        for request_id, request in self.requests.items():
            self.check_end(request_id, request)
        snapshot = self.driver.scheduler.snapshot()
        assert (snapshot.running, snapshot.queued) == (0, 0)
        assert snapshot.free_blocks == snapshot.total_blocks

    def check_end(self, request_id: str, request: Request) -> None:
        tokens, last = self.driver.tokens[request_id], self.driver.last[request_id]
        if last.finish_reason is FinishReason.CANCELLED:
            assert request_id in self.cancelled
        elif last.finish_reason is not FinishReason.ERROR:
            expected, reason = fakes.expected_tokens(request, self.driver.engine.info)
            denied_at = self.denied.get(request_id, MAX_MODEL_LEN)
            if denied_at <= len(expected):
                expected, reason = expected[:denied_at], FinishReason.LENGTH
            assert (tokens, last.finish_reason) == (expected, reason)
            num_end_tokens = reason is FinishReason.STOP
            assert last.num_output_tokens == len(tokens) + num_end_tokens

    def note_plans(self) -> None:
        """Follow every prompt through the plans that were made since the last time."""
        for plan in self.driver.plans[self.num_noted :]:
            for new in plan.admitted:
                self.request_of_slot[new.slot] = new.request_id
                prefilled = self.prefilled[new.request_id]
                prefilled.reach(min(new.num_computed, new.num_prompt_tokens))
                if prefilled.found is None:
                    prefilled.found = new.num_computed
            for chunk in plan.slices:
                request_id = self.request_of_slot[chunk.slot]
                num_prompt_tokens = len(self.requests[request_id].prompt_token_ids)
                reached = min(chunk.start + chunk.n_tokens, num_prompt_tokens)
                self.prefilled[request_id].reach(reached)
        self.num_noted = len(self.driver.plans)

    def live(self) -> list[str]:
        ended = {r for r, last in self.driver.last.items() if last.finish_reason is not None}
        return [request_id for request_id in self.requests if request_id not in ended]

    def raise_grant(self, request_id: str, more: int | None) -> None:
        granted = self.granted[request_id]
        assert granted is not None
        self.granted[request_id] = None if more is None else granted + more
        self.driver.scheduler.extend(request_id, self.granted[request_id], self.driver.now)


SchedulerMachine.TestCase.settings = settings(
    max_examples=num_histories(100),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestScheduler = pytest.mark.histories(SchedulerMachine.TestCase)
