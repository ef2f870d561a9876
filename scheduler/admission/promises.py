"""The shortest pace that a tenant may be promised at what the others may pay for it.

While rows with a promised pace or gap decode, a step may take no longer, so fewer prompt tokens go
into it, and what every step costs whatever is in it is spent more often. What that takes from
everybody is a matter of the step model: the prompt tokens that steps of that length compute in a
second, over those of the steps that compute most. How often such rows run is left out: a tenant
that is promised something may send without a pause.
"""

from __future__ import annotations

from engine.step_cost import StepFeatures
from scheduler.learn import StepModel

_CHUNK_TOKENS = 16


def least_pace_s(step_model: StepModel, *, max_num_tokens: int, max_loss: float) -> float:
    """Return the shortest time between tokens whose steps lose at most `max_loss` of throughput.

    Args: `max_num_tokens`: of a step. `max_loss`: a share, below 1.
    Returns: seconds, with the room that predictions of steps are given.
    """
    sizes = [*range(_CHUNK_TOKENS, max_num_tokens, _CHUNK_TOKENS), max_num_tokens]
    steps = [(size, step_model.price_s(StepFeatures(num_prefill_tokens=size))) for size in sizes]
    most_per_s = max(size / step_s for size, step_s in steps)
    least_per_s = (1.0 - max_loss) * most_per_s
    return step_model.margin * min(s for size, s in steps if size / s >= least_per_s)
