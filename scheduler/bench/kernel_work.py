"""What each kind of launch of a step must move and compute at least, all layers together.

Products count their weights, inputs and outputs; small kernels the activations that they read and
write. A kernel whose work depends on more than the shapes of a step (how rows were parted into
pieces, what filters left to draw from) is not here.
"""

from __future__ import annotations

from engine.step_cost import StepFeatures
from scheduler.bench.roofline import ModelWork, Phase


def work_by_launch(model: ModelWork, features: StepFeatures, num_draws: int) -> dict[str, Phase]:
    """Count by product (as `scheduler.bench.kernel_table.products` calls them) and by kernel."""
    step = model.step(features, num_draws)
    work = _products(model, features.num_tokens) | _small(model, features.num_tokens, num_draws)
    inputs_bytes = num_draws * model.config.hidden_size * model.itemsize
    work["head"] = Phase(step.head.size_bytes + inputs_bytes, step.head.flop)
    work["_scan_kernel"] = step.draw
    decodes = StepFeatures(
        num_decode_tokens=features.num_decode_tokens,
        decode_context_tokens=features.decode_context_tokens,
    )
    prefills = StepFeatures(
        num_prefill_tokens=features.num_prefill_tokens,
        prefill_context_tokens=features.prefill_context_tokens,
        prefill_attended_tokens=features.prefill_attended_tokens,
    )
    work["_decode_attention"] = model.step(decodes, 0).attention
    work["_prefill_attention"] = model.step(prefills, 0).attention
    # Kernels that find nothing to do have no rate.
    return {name: phase for name, phase in work.items() if phase.size_bytes}


def _products(model: ModelWork, num_tokens: int) -> dict[str, Phase]:
    layers = model.config.num_layers
    return {
        name: Phase(
            layers
            * (
                inputs * (outputs + num_tokens) * model.body_itemsize
                + outputs * num_tokens * model.itemsize
            ),
            2 * layers * inputs * outputs * num_tokens,
        )
        for name, (inputs, outputs) in model.linears.items()
    }


def _small(model: ModelWork, num_tokens: int, num_draws: int) -> dict[str, Phase]:
    layers, hidden = model.config.num_layers, model.config.hidden_size
    token = hidden * model.itemsize
    # Two norms a layer and a last one; each reads and writes the sum too, but for the first, which
    # has none yet, and the last, whose sum nobody wants.
    norms = (2 + 4 * (2 * layers - 1)) * num_tokens + 3 * num_draws
    rotated = (2 * model.query_size + model.kv_size) * model.itemsize
    stored = model.kv_size * model.kv_itemsize
    gated = 3 * model.config.intermediate_size * model.itemsize
    return {
        "_begin_step_kernel": Phase(2 * num_tokens * token),
        "_add_rms_norm_kernel": Phase(norms * token),
        "_rotary_write_kernel": Phase(layers * num_tokens * (rotated + stored)),
        "_silu_mul_kernel": Phase(layers * num_tokens * gated),
    }
