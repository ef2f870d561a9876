"""The engine of the VTC paper's artifact, as a configuration of ours.

S-LoRA's router on one A10G with Llama-2-7B: prefills run in steps of their own of at most 3,072
tokens, the queue is looked at every ten decoding steps, KV holds 10,000 tokens, and what a request
will draw is known to whoever reserves memory for it. Steps cost what a replay of the artifact's
own result files was fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.contract import StepPlan
from engine.step_cost import LinearCost, StepCost, StepFeatures
from scheduler.config import (
    AdmissionConfig,
    ComposerConfig,
    FairnessConfig,
    PreemptionConfig,
    SchedulerConfig,
)
from scheduler.simulator.setup import Machine

_NUM_KV_TOKENS = 10_000
_MAX_PREFILL_TOKENS = 3_072
_DECODE = LinearCost(0.019, 0.0, 0.0, 0.000_16, 0.000_002_1)
_PREFILL_TOKEN_S = 0.000_214


@dataclass(frozen=True, slots=True)
class ReplayCost(StepCost):
    """Price a step as its prefill and its decode one after the other; either may be missing."""

    def price_s(self, step: StepFeatures | StepPlan) -> float:
        features = StepFeatures.of_plan(step) if isinstance(step, StepPlan) else step
        prefill_s = _PREFILL_TOKEN_S * features.num_prefill_tokens
        return prefill_s + (_DECODE.price_s(features) if features.num_decode_tokens else 0.0)


def vtc_machine() -> Machine:
    """Size the artifact's engine; a block is a token, as its memory is counted."""
    return Machine(
        cost=ReplayCost("vtc-replay", small=_DECODE, large=_DECODE),
        max_model_len=4_096,
        max_num_seqs=256,
        max_num_batched_tokens=_MAX_PREFILL_TOKENS,
        num_blocks=_NUM_KV_TOKENS,
        block_size=1,
    )


def vtc_config(policy: str) -> SchedulerConfig:
    """Configure our scheduler to run as the artifact's does, under a policy."""
    return SchedulerConfig(
        fairness=FairnessConfig(policy=policy, unit="tokens", max_throughput_loss=0.0),
        composer=ComposerConfig(
            dynamic_chunk=False,
            prefill_first=True,
            admission_interval_steps=10,
            kv_reserve="max",
        ),
        admission=AdmissionConfig(predict_ttft=False, max_num_queued=1_000_000, drop_expired=False),
        preemption=PreemptionConfig(),
        prefix_caching=False,
    )
