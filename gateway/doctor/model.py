"""The model's directory: known, whole, and how large."""

from __future__ import annotations

from pathlib import Path

from gateway.doctor.finding import Finding, broken, ok
from gateway.settings import Settings


def check_model(settings: Settings) -> tuple[Finding, int]:
    """Check what can be checked without loading it; return the size of its weights in bytes too."""
    from engine.demo import MODEL_DIR
    from engine.errors import EngineError
    from engine.models.hf_config import load_model_config
    from engine.text import Tokenizer

    directory = MODEL_DIR if settings.model is None else settings.model.expanduser()
    needs_weights = settings.load_format == "auto" and settings.engine != "simulated"
    mend = "choose another with --model, or mend what the message names"
    try:
        config = load_model_config(directory)
        if needs_weights or (directory / "tokenizer.json").exists():
            Tokenizer.from_dir(directory)
    except EngineError as exc:
        return broken("model", str(exc), mend), 0
    size_bytes = _weights_bytes(directory)
    if needs_weights and not size_bytes:
        found = f"{directory} has no *.safetensors"
        return broken("model", found, "download the weights, or --load-format dummy"), 0
    found = f"{config.architecture}, {size_bytes / (1 << 20):.1f} MiB at {directory}"
    return ok("model", found), size_bytes if needs_weights else 0


def _weights_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
