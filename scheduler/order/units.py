"""In what unit tenants are charged: what a prompt, a row's next token and held blocks cost.

Tokens are what the papers count and what quotas and prices are in. They miss what a machine has to
do for one: a token over a hundred thousand others that were cached takes as long as a hundred of a
new prompt. `scheduler.learn.MachineTime` charges by that.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.step_cost import StepFeatures
from scheduler.config import Prices


class StepPrices(NamedTuple):
    """Say what a step costs who is in it.

    `row` for each row that has drawn a token, `context_token` for each token which that one came
    after, and `held_token` for each token of KV that a request holds of its own, whether it was in
    the step or not.
    """

    row: float
    context_token: float = 0.0
    held_token: float = 0.0


class Unit(Protocol):
    """Price work; `input` and `output` are what a token of each is reckoned to cost just now."""

    @property
    def input(self) -> float: ...

    @property
    def output(self) -> float: ...

    def prompt(self, num_tokens: int, num_cached: int) -> float:
        """Price a prompt of which the first `num_cached` tokens need not be computed."""
        ...

    def rest(self, num_tokens: int, num_had: int) -> float:
        """Price what is left of a prompt of which `num_had` tokens are computed."""
        ...

    def chunk_surcharge(self, start: int, num_tokens: int) -> float:
        """Price what a chunk of a prompt costs beyond its part of `prompt`, for being a chunk."""
        ...

    def step(self, features: StepFeatures) -> StepPrices:
        """Price what is in a step beside its prompts."""
        ...


class Tokens:
    """Charge by the token, at fixed prices."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._step = StepPrices(prices.output)

    @property
    def input(self) -> float:
        return self._prices.input

    @property
    def output(self) -> float:
        return self._prices.output

    def prompt(self, num_tokens: int, num_cached: int) -> float:
        cached = self._prices.cached_input * num_cached
        return self._prices.input * (num_tokens - num_cached) + cached

    def rest(self, num_tokens: int, num_had: int) -> float:
        return self._prices.input * max(0, num_tokens - num_had)

    def chunk_surcharge(self, start: int, num_tokens: int) -> float:
        return 0.0

    def step(self, features: StepFeatures) -> StepPrices:
        return self._step
