"""Reads how a model's makers want it sampled: `generation_config.json`.

The fields are those that vLLM takes from it; the rest of the file (`do_sample`, beams) is left
alone. A value that no request could ask for ends the start, by its file and field: sampled some
other way, every answer would look right and be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from engine.contract import Capability, EngineInfo, SamplingParams
from engine.errors import ModelError
from engine.text.tokenizer import read_json_object

FILE_NAME: Final = "generation_config.json"
# What a request may ask for too, both ends included.
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
_INT32_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Hold what a request is sampled with where it does not say.

    `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 are off. `max_tokens` None: as far
    as the context goes.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None

    def chosen(self) -> dict[str, float]:
        """Return what differs from plain sampling."""
        plain = SamplingDefaults()
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in pairs if value != getattr(plain, name)}

    def fitted(self, info: EngineInfo) -> SamplingDefaults:
        """Return what an engine can do of these: nobody asked for the rest, so nothing is refused.

        A `top_k` of more than the vocabulary is all of it.
        """
        penalises = Capability.PENALTIES in info.capabilities
        return replace(
            self,
            top_k=min(self.top_k, info.vocab_size),
            repetition_penalty=self.repetition_penalty if penalises else 1.0,
        )

    def params(self, max_tokens: int) -> SamplingParams:
        """Return parameters with these defaults; `max_tokens` where there is none among them."""
        top_p, temperature = self.top_p, self.temperature
        if top_p == 0:
            # The nucleus of 0 holds the likeliest token alone.
            top_p, temperature = 1.0, 0.0
        return SamplingParams(
            max_tokens=self.max_tokens or max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


def read_sampling_defaults(model_dir: Path) -> SamplingDefaults:
    """Return the sampling defaults of a model directory; plain ones where it names none.

    null is nothing said, and a `top_k` of -1 is off. Raises: `ModelError`: the file, or a value.
    """
    path = model_dir / FILE_NAME
    said = {name: one for name, one in read_json_object(path).items() if one is not None}
    # Any: the fields of `SamplingDefaults` are of more than one type.
    read: dict[str, Any] = {
        name: _number(path, name, said[name]) for name in BOUNDS if name in said
    }
    if "top_k" in said:
        read["top_k"] = max(0, _integer(path, "top_k", said["top_k"], -1))
    if "max_new_tokens" in said:
        read["max_tokens"] = _integer(path, "max_new_tokens", said["max_new_tokens"], 1)
    return SamplingDefaults(**read)


def _number(path: Path, name: str, value: object) -> float:
    low, high = BOUNDS[name]
    # True is an int in Python; NaN is between no two numbers.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _wrong(path, name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _integer(path: Path, name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _INT32_MAX:
        raise _wrong(path, name, value, f"a whole number from {low} to {_INT32_MAX}")
    return value


def _wrong(path: Path, name: str, value: object, wanted: str) -> ModelError:
    text = json.dumps(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return ModelError(
        f"{path}: {name} is {shown}; it must be {wanted}: correct it, or start without the "
        "file's sampling defaults (--generation-config none)"
    )
