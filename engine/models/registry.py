"""Which architectures can be served, and where their code is.

Listing the names loads no torch; `load_model_class` imports the one module that is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODEL_CLASSES = {
    "LlamaForCausalLM": ("engine.models.llama", "LlamaForCausalLM"),
}


def known_architectures() -> tuple[str, ...]:
    """List the architectures that can be served, by their Hugging Face names, sorted."""
    return tuple(sorted(_MODEL_CLASSES))


# Any: the class is `type[engine.models.layers.CausalLM]`, but naming that here would make every
# reader of this list depend on torch.
def load_model_class(architecture: str) -> Any:
    """Import the class that runs `architecture`, one of `known_architectures()`."""
    module, name = _MODEL_CLASSES[architecture]
    return getattr(importlib.import_module(module), name)
