"""The model's directory: known, whole, and how large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.app.model_loading import engine_config, model_dir_of, sampling_defaults
from gateway.app.model_plan import PlannedModel
from gateway.doctor.finding import Finding, broken, ok


def check_model(planned: PlannedModel) -> tuple[Finding, int]:
    """Check what can be checked without loading it; return the size of its weights in bytes too."""
    from engine.errors import EngineError
    from engine.models.hf_config import load_model_config
    from engine.text import Tokenizer

    settings, name = planned.settings, _called("model", planned)
    is_computed = settings.engine != "simulated" or planned.makes_vectors
    needs_weights = settings.load_format == "auto" and is_computed
    mend = "choose another with --model, or mend what the message names"
    if planned.has_table:
        mend = "mend what the message names, or the directory in its table"
    try:
        directory = model_dir_of(planned)
        config = load_model_config(directory, is_headless=planned.makes_vectors)
        if needs_weights or (directory / "tokenizer.json").exists():
            Tokenizer.from_dir(directory)
        if not planned.makes_vectors:
            sampling_defaults(settings)
    except EngineError as exc:
        return broken(name, str(exc), mend), 0
    size_bytes = _weights_bytes(directory)
    if needs_weights and not size_bytes:
        found = f"{directory} has no *.safetensors"
        return broken(name, found, "download the weights, or --load-format dummy"), 0
    found = f"{config.architecture}, {size_bytes / (1 << 20):.1f} MiB at {directory}"
    return ok(name, found), size_bytes if needs_weights else 0


def check_context(planned: PlannedModel) -> Iterator[Finding]:
    """Say what context a start would serve, and why it is less than the model's."""
    from engine.errors import EngineError, ModelError
    from engine.models.hf_config import load_model_config
    from engine.open import planned_context

    name = _called("context", planned)
    mend = "mend what the message names, each a SLUICE_ variable in capitals"
    try:
        config = engine_config(planned)
        whole = load_model_config(config.model_dir).max_position_embeddings
        context = planned_context(config, simulated=planned.settings.engine == "simulated")
    except ModelError:
        return  # The check of the model has said so.
    except EngineError as exc:
        yield broken(name, str(exc), mend)
        return
    if context is None:
        found = f"up to {whole:,} tokens, as far as a GPU's free memory holds them: the banner says"
        yield ok(name, found)
    elif context.why_shorter is None:
        yield ok(name, f"{context.max_model_len:,} tokens, the model's whole")
    else:
        yield ok(name, f"{context.max_model_len:,} of {whole:,} tokens: {context.why_shorter}")


def _called(what: str, planned: PlannedModel) -> str:
    return f"{what} {planned.name}" if planned.has_table else what


def _weights_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
