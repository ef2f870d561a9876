"""The models that this process serves, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.contract import EngineInfo
from engine.embedding_config import EmbeddingConfig
from engine.generation_config import SamplingDefaults
from engine.text import ChatTemplate, Tokenizer
from gateway.errors import ModelNotFound
from gateway.services.answers import PLAIN, AnswerFormat
from scheduler.service import EngineService


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Bind a name to what computes it.

    `created_s` is Unix time; `fingerprint` names the build; `answer_format` says how it writes
    thinking and calls. One with an `embedding` makes vectors, and nothing else.
    """

    name: str
    service: EngineService
    info: EngineInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    created_s: int
    fingerprint: str
    aliases: Sequence[str] = ()
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    answer_format: AnswerFormat = PLAIN
    embedding: EmbeddingConfig | None = None

    @property
    def takes_tools(self) -> bool:
        """Tell whether it can be told of tools, and what it writes be read for calls."""
        template = self.chat_template
        return (
            template is not None
            and "tools" in template.names
            and self.answer_format.calls is not None
        )


def sizes_of(model: ServedModel) -> Sequence[int]:
    """List how long the vectors of a model may be asked for."""
    assert model.embedding is not None, "it makes vectors"
    size, listed = model.info.embedding_size, model.embedding.dimensions
    if listed is None:
        return [size]
    if not listed:
        return range(1, size + 1)
    return sorted({*(n for n in listed if n < size), size})


class ModelRegistry:
    """Look models up by name or alias; the set is fixed while the process lives."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = tuple(models)
        self._by_name: dict[str, ServedModel] = {}
        for model in self._models:
            for name in (model.name, *model.aliases):
                if name in self._by_name:
                    raise ValueError(f"two models claim the name {name!r}")
                self._by_name[name] = model

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def get(self, name: str) -> ServedModel:
        """Return the model of a name or alias. Raises: `ModelNotFound`."""
        model = self._by_name.get(name)
        if model is None:
            shown = name if len(name) <= 100 else f"{name[:100]}…"
            raise ModelNotFound(
                f"The model '{shown}' does not exist. GET /v1/models lists what is served.",
                param="model",
            )
        return model
