"""How fast a step could be at best, from what it must move and what it must compute.

A step is phases: the products with the layers' weights, attention, the product with the head, and
the draw. Each takes at least the larger of two times, its bytes over the bandwidth and its
operations over the rate of matrix products, and the floor of a step is the **sum** of its phases:
they run one after another, as each reads what the one before it made, so the bandwidth that a
product leaves unused while it computes is not there for attention's reads. (A step's layers take
turns with the phases; that changes the order of the terms and not their sum.)

Both ceilings are this machine's own, measured in the same run (`scheduler.bench.ceilings`), so a
share of the floor says how much of the machine a step uses. Weights are counted once a step: that
they are read again, or come from a cache, is what the share shows. What is passed on between
phases, but for the logits, is left out: it is little, and much of it stays in a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.models.hf_config import ModelConfig
from engine.step_cost import StepFeatures


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Hold what a machine can do: bytes copied a second (read + written), operations a second."""

    copy_bytes_per_s: float
    flop_per_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """Count what must be done at least before the next can begin: bytes moved, operations."""

    size_bytes: float
    flop: float = 0.0

    def floor_s(self, ceilings: Ceilings) -> float:
        return max(self.size_bytes / ceilings.copy_bytes_per_s, self.flop / ceilings.flop_per_s)


@dataclass(frozen=True, slots=True)
class StepWork:
    """Hold the phases of a step; `floor_s` is their sum, as they run one after another."""

    body: Phase
    attention: Phase
    head: Phase
    draw: Phase

    @property
    def flop(self) -> float:
        return sum(phase.flop for phase in self._phases)

    @property
    def size_bytes(self) -> float:
        return sum(phase.size_bytes for phase in self._phases)

    def floor_s(self, ceilings: Ceilings) -> float:
        return sum(phase.floor_s(ceilings) for phase in self._phases)

    @property
    def _phases(self) -> tuple[Phase, ...]:
        return self.body, self.attention, self.head, self.draw


class ModelWork:
    """Count the work of steps of one model, in a dtype of `itemsize` bytes.

    `body_itemsize` and `kv_itemsize` are those of the layers' weights and of the cache, where they
    differ. `linears` has the inputs and outputs of the products of a layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        itemsize: int,
        *,
        body_itemsize: int | None = None,
        kv_itemsize: int | None = None,
    ) -> None:
        self.config = config
        self.itemsize = itemsize
        self.body_itemsize = body_itemsize or itemsize
        self.kv_itemsize = kv_itemsize or itemsize
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.query_size = config.num_heads * config.head_dim
        # Keys and values of a token in a layer.
        self.kv_size = 2 * config.num_kv_heads * config.head_dim
        self.linears: Mapping[str, tuple[int, int]] = {
            "qkv": (hidden, self.query_size + self.kv_size),
            "out": (self.query_size, hidden),
            "gate_up": (hidden, 2 * intermediate),
            "down": (intermediate, hidden),
        }
        # Parameters that every token is multiplied with; the head, that every drawn token is.
        layer = sum(inputs * outputs for inputs, outputs in self.linears.values())
        self._num_body = config.num_layers * layer
        self._num_head = config.vocab_size * hidden

    @property
    def num_parameters(self) -> int:
        """Count the parameters that a step reads: the layers and the head, no embedding."""
        return self._num_body + self._num_head

    def decode(self, num_decodes: int, num_context_tokens: int) -> StepWork:
        """Count a step that decodes rows; `num_context_tokens` is the sum over the rows."""
        features = StepFeatures(
            num_decode_tokens=num_decodes, decode_context_tokens=num_context_tokens - num_decodes
        )
        return self.step(features, num_decodes)

    def prefill(self, num_tokens: int) -> StepWork:
        """Count a whole prompt, of which one token is drawn from."""
        return self.step(StepFeatures(num_prefill_tokens=num_tokens), 1)

    def step(self, features: StepFeatures, num_draws: int) -> StepWork:
        """Count any step, of which `num_draws` tokens are drawn; each context is read once.

        The head multiplies what is drawn from alone, writes its logits in the model's dtype, and
        the draw reads them once; a step that draws nothing needs neither.
        """
        logits = Phase(num_draws * self.config.vocab_size * self.itemsize)
        head_weights = self._num_head * self.itemsize if num_draws else 0
        return StepWork(
            Phase(self._num_body * self.body_itemsize, 2 * self._num_body * features.num_tokens),
            self._attention(features),
            Phase(head_weights + logits.size_bytes, 2 * self._num_head * num_draws),
            logits,
        )

    def _attention(self, features: StepFeatures) -> Phase:
        """Count all layers: each context read once, every token with what it attends to."""
        contexts = features.decode_context_tokens + features.prefill_context_tokens
        attended = (
            features.decode_context_tokens
            + features.num_decode_tokens
            + features.prefill_attended_tokens
        )
        layers = self.config.num_layers
        return Phase(
            layers * self.kv_size * (contexts + features.num_tokens) * self.kv_itemsize,
            4 * layers * self.query_size * attended,
        )
