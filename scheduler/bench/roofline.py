"""How fast a step could be at best, from what it must move and what it must compute.

The larger of two times is the floor: bytes over the bandwidth, operations over the rate of matrix
products. Both ceilings are this machine's own, measured in the same run (`scheduler.bench.
ceilings`), so a share of the floor says how much of the machine a step uses. Weights are counted
once a step: that they are read again, or come from a cache, is what the share shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.hf_config import ModelConfig
from engine.step_cost import StepFeatures


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Hold what a machine can do: bytes copied a second (read + written), operations a second."""

    copy_bytes_per_s: float
    flop_per_s: float


@dataclass(frozen=True, slots=True)
class StepWork:
    """Count what a step must do at least: bytes moved, floating-point operations."""

    size_bytes: float
    flop: float

    def floor_s(self, ceilings: Ceilings) -> float:
        return max(self.size_bytes / ceilings.copy_bytes_per_s, self.flop / ceilings.flop_per_s)


class ModelWork:
    """Count the work of steps of one model, in a dtype of `itemsize` bytes.

    `body_itemsize` and `kv_itemsize` are those of the layers' weights and of the cache, where they
    differ.
    """

    def __init__(
        self,
        config: ModelConfig,
        itemsize: int,
        *,
        body_itemsize: int | None = None,
        kv_itemsize: int | None = None,
    ) -> None:
        heads = config.num_heads + 2 * config.num_kv_heads
        attention = config.hidden_size * config.head_dim * (heads + config.num_heads)
        mlp = 3 * config.hidden_size * config.intermediate_size
        # Parameters that every token is multiplied with; the head, that every drawn token is.
        self._num_body = config.num_layers * (attention + mlp)
        self._num_head = config.vocab_size * config.hidden_size
        self._num_layers = config.num_layers
        self._query_size = config.num_heads * config.head_dim
        self._kv_size = config.num_kv_heads * config.head_dim
        self._kv_itemsize = kv_itemsize or itemsize
        self._weight_bytes = (
            self._num_body * (body_itemsize or itemsize) + self._num_head * itemsize
        )

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

    def step(self, features: StepFeatures, num_draws: int) -> StepWork:
        """Count any step, of which `num_draws` tokens are drawn; each context is read once."""
        contexts = features.decode_context_tokens + features.prefill_context_tokens
        attended = (
            features.decode_context_tokens
            + features.num_decode_tokens
            + features.prefill_attended_tokens
        )
        kv = 2 * self._num_layers * self._kv_size * (contexts + features.num_tokens)
        attend = 4 * self._num_layers * self._query_size * attended
        return StepWork(
            self._weight_bytes + kv * self._kv_itemsize,
            2 * (self._num_body * features.num_tokens + self._num_head * num_draws) + attend,
        )

    def prefill(self, num_tokens: int) -> StepWork:
        """Count a whole prompt, of which one token is drawn from; attention is causal."""
        kv = 2 * self._num_layers * self._kv_size * num_tokens
        attend = 2 * self._num_layers * self._query_size * num_tokens * num_tokens
        return StepWork(
            self._weight_bytes + kv * self._kv_itemsize,
            2 * (self._num_body * num_tokens + self._num_head) + attend,
        )
