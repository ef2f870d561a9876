"""What a step costs as a function of its plan: two linear models, split by batch size.

Small steps are bound by reading weights and large ones by arithmetic, so each regime has its own
coefficients. A profile is one JSON file in `engine/profiles/`, fitted for one model on one
device, and says where its numbers come from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TypedDict

from engine.contract import StepPlan


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """Describe a step by what its time depends on.

    The context of a row is what it attends to beyond the tokens of this step: what its KV held
    before. A row that computes several tokens, or its sequence's first, is a prefill.
    `prefill_attended_tokens` counts for each prompt token those it attends to, itself included:
    what attention does for prefills. Where it is not given, it is that of a single sequence.
    """

    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    prefill_context_tokens: int = 0
    decode_context_tokens: int = 0
    prefill_attended_tokens: int = -1

    def __post_init__(self) -> None:
        if self.prefill_attended_tokens < 0:
            attended = attended_tokens(self.prefill_context_tokens, self.num_prefill_tokens)
            object.__setattr__(self, "prefill_attended_tokens", attended)

    @property
    def num_tokens(self) -> int:
        return self.num_prefill_tokens + self.num_decode_tokens

    @classmethod
    def of_plan(cls, plan: StepPlan) -> StepFeatures:
        """Read the features off a plan: contexts are the positions where its rows start."""
        return cls(
            num_prefill_tokens=sum(s.n_tokens + len(s.drafts) for s in plan.slices),
            num_decode_tokens=len(plan.decodes),
            prefill_context_tokens=sum(s.start for s in plan.slices),
            decode_context_tokens=sum(plan.decodes.positions),
            prefill_attended_tokens=sum(
                attended_tokens(s.start, s.n_tokens + len(s.drafts)) for s in plan.slices
            ),
        )


def attended_tokens(start: int, num_tokens: int) -> int:
    """Count what a chunk of a prompt attends to, token by token, each itself included."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Hold one regime's coefficients, in seconds for the step and for each token."""

    intercept_s: float
    per_token_s: float
    per_prefill_token_s: float = 0.0
    per_decode_token_s: float = 0.0
    per_decode_context_token_s: float = 0.0
    per_prefill_context_token_s: float = 0.0
    per_prefill_attended_token_s: float = 0.0

    def price_s(self, step: StepFeatures) -> float:
        return (
            self.intercept_s
            + self.per_token_s * step.num_tokens
            + self.per_prefill_token_s * step.num_prefill_tokens
            + self.per_decode_token_s * step.num_decode_tokens
            + self.per_decode_context_token_s * step.decode_context_tokens
            + self.per_prefill_context_token_s * step.prefill_context_tokens
            + self.per_prefill_attended_token_s * step.prefill_attended_tokens
        )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Price steps, in seconds.

    Steps of up to `split_num_tokens` tokens follow `small`, others `large`. A linear fit can
    fall below the cost of an empty step where nothing was measured (the A100 profile does for
    hundreds of decodes without a prefill), so the smaller intercept is the floor.
    Source: the two-regime form of the Niyama artifact, microsoft/sarathi-serve, branch
    niyama_asplos2026, sarathi/core/scheduler/deadline_scheduler.py.
    """

    name: str
    small: LinearCost
    large: LinearCost
    split_num_tokens: int = 512

    def price_s(self, step: StepFeatures | StepPlan) -> float:
        """Predict how long the engine takes for a step."""
        features = StepFeatures.of_plan(step) if isinstance(step, StepPlan) else step
        regime = self.small if features.num_tokens <= self.split_num_tokens else self.large
        return max(regime.price_s(features), min(self.small.intercept_s, self.large.intercept_s))


class _Profile(TypedDict):
    name: str
    split_num_tokens: int
    small: dict[str, float]
    large: dict[str, float]


def load_profile(name: str) -> StepCost:
    """Read the profile `name` that is shipped with the engine.

    Raises: `FileNotFoundError`: there is none of that name; `profile_names` lists them.
    """
    if name not in profile_names():
        raise FileNotFoundError(
            f"no step-cost profile {name!r}: choose one of {', '.join(profile_names())}"
        )
    profile: _Profile = json.loads(_profiles().joinpath(f"{name}.json").read_text("utf-8"))
    return StepCost(
        name=profile["name"],
        small=LinearCost(**profile["small"]),
        large=LinearCost(**profile["large"]),
        split_num_tokens=profile["split_num_tokens"],
    )


def profile_names() -> list[str]:
    """List the shipped profiles."""
    return sorted(
        entry.name.removesuffix(".json")
        for entry in _profiles().iterdir()
        if entry.name.endswith(".json")
    )


def _profiles() -> Traversable:
    return resources.files("engine") / "profiles"
