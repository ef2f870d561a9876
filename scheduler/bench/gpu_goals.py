"""Goals that are meant for a GPU: anywhere else a figure is stated without one.

A large model's decode steps are to reach a stated share of their floor. A small model's cannot all:
what launches cost is the same there, and the floor is not. So its goal is the floor over a target:
products at three quarters of their floor, what reads keys, values and logits at 85 %, and the
launches. A batch of one on 0.6 billion parameters then is to reach 43 %, and one of 256, where
nearly all of a step is attention, more than a large model's.
"""

from __future__ import annotations

from scheduler.bench.report import Figure, at_least, at_most
from scheduler.bench.roofline import Ceilings, ModelWork
from scheduler.bench.setup import Bench

# What is called a 4B model, and all above.
_LARGE_NUM_PARAMETERS = 3_500_000_000
# By batch: those that there is a goal for.
_LARGE_DECODE_SHARES = {1: 0.60, 256: 0.78}
# Of what a large matrix product reaches, by prompts of 8,192 tokens.
_PREFILL_NUM_TOKENS, _PREFILL_SHARE = 8192, 0.55
# What a small model's target is made of.
_PRODUCT_SHARE, _READ_SHARE = 0.75, 0.85
_LAUNCHES_PER_LAYER, _LAUNCH_S, _STEP_S = 8, 1.2e-6, 40e-6


def at_least_on_gpu(bench: Bench, value: float, bound: float | None, unit: str) -> Figure:
    """State a figure that must reach `bound` on a GPU, where there is one."""
    if bound is None or not bench.options.on_gpu:
        return Figure(value, unit)
    return at_least(value, bound, unit)


def at_most_on_gpu(bench: Bench, value: float, bound: float | None, unit: str) -> Figure:
    """State a figure that must not exceed `bound` on a GPU, where there is one."""
    if bound is None or not bench.options.on_gpu:
        return Figure(value, unit)
    return at_most(value, bound, unit)


def decode_goal(bench: Bench, batch: int, num_context_tokens: int) -> float | None:
    """Say what share of its floor a step must reach that decodes a batch; None: there is no goal.

    Goals are for weights as they are saved. Args: `num_context_tokens`: the sum over the rows.
    """
    if bench.options.eight_bits:
        return None
    return decode_share(bench.work, batch, num_context_tokens, bench.ceilings)


def prefill_goal(bench: Bench, num_tokens: int) -> float | None:
    """Say what share of a product's rate prompts of so many tokens must reach; None: no goal."""
    if bench.options.eight_bits or num_tokens != _PREFILL_NUM_TOKENS:
        return None
    return _PREFILL_SHARE if _is_large(bench.work) else None


def decode_share(
    model: ModelWork, batch: int, num_context_tokens: int, ceilings: Ceilings
) -> float | None:
    """Say what share of its floor a model's decode step should reach, where there is a goal."""
    if batch not in _LARGE_DECODE_SHARES:
        return None
    if _is_large(model):
        return _LARGE_DECODE_SHARES[batch]
    floor_s = model.decode(batch, num_context_tokens).floor_s(ceilings)
    return round(floor_s / decode_target_s(model, batch, num_context_tokens, ceilings), 3)


def decode_target_s(
    model: ModelWork, batch: int, num_context_tokens: int, ceilings: Ceilings
) -> float:
    """Return what a step that decodes a batch should take on a GPU, in seconds."""
    work = model.decode(batch, num_context_tokens)
    products_s = work.body.floor_s(ceilings) + work.head.floor_s(ceilings)
    reads_s = work.attention.floor_s(ceilings) + work.draw.floor_s(ceilings)
    launches_s = model.config.num_layers * _LAUNCHES_PER_LAYER * _LAUNCH_S + _STEP_S
    return products_s / _PRODUCT_SHARE + reads_s / _READ_SHARE + launches_s


def _is_large(model: ModelWork) -> bool:
    return model.num_parameters >= _LARGE_NUM_PARAMETERS
