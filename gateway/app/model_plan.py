"""Which models the settings name, each with the settings that are its own.

Without `[[models]]` these are the model of `--model` and that of `--embedding-model`: everything
below reads both forms alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import StartupFailed
from gateway.model_settings import DEMO, DEMO_NAMES, ModelTable, kv_shares
from gateway.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """Say what to load: `settings` are those of a server that has this model alone.

    `kv_share` is of the memory for KV caches, `weight` of the processors. `table` tells whether it
    stands in a table of its own, which errors name then.
    """

    name: str
    settings: Settings
    makes_vectors: bool = False
    aliases: Sequence[str] = ()
    kv_share: float = 1.0
    weight: float = 1.0
    has_table: bool = False

    @property
    def directory(self) -> Path:
        """Return where its files are, `demo` for the demo's."""
        settings = self.settings
        found = settings.embedding_model if self.makes_vectors else settings.model
        return DEMO if found is None else found

    def failed(self, error: Exception) -> str:
        """Say which model it was that could not be loaded, and why."""
        return f"[[models]] {self.name}: {error}" if self.has_table else str(error)


def planned_models(settings: Settings) -> list[PlannedModel]:
    """List what is to be served, in the order of the settings. Raises: `StartupFailed`."""
    if settings.models:
        shares = kv_shares(settings.models)
        return [_of_table(settings, *each) for each in zip(settings.models, shares, strict=True)]
    planned = [PlannedModel(name=_name_of(settings), settings=settings)]
    if settings.embedding_model is not None:
        beside = _short_embedding(settings)
        if beside.name == planned[0].name:
            raise StartupFailed(
                f"SLUICE_EMBEDDING_MODEL_NAME: two models are called {beside.name}: name one anew"
            )
        planned.append(beside)
    return planned


def _name_of(settings: Settings) -> str:
    if settings.model is None:
        return settings.model_name or DEMO_NAMES["chat"]
    return settings.model_name or settings.model.expanduser().resolve().name


def _short_embedding(settings: Settings) -> PlannedModel:
    """Plan what is served beside: it has a memory of its own, and runs in its own type."""
    directory, name = settings.embedding_model, settings.embedding_model_name
    assert directory is not None
    if name is None:
        is_demo = directory.expanduser() == DEMO
        name = DEMO_NAMES["embedding"] if is_demo else directory.expanduser().resolve().name
    own: dict[str, Any] = {
        "dtype": None,
        "max_model_len": None,
        "max_num_batched_tokens": None,
        "kv_cache_bytes": settings.embedding_kv_cache_bytes,
    }
    return PlannedModel(name=name, settings=settings.model_copy(update=own), makes_vectors=True)


def _of_table(settings: Settings, table: ModelTable, kv_share: float) -> PlannedModel:
    directory = None if table.directory == DEMO else table.directory
    own: dict[str, Any] = {"models": (), **table.own_options}
    makes_vectors = table.role == "embedding"
    if makes_vectors:
        own |= {
            "embedding_model": table.directory,
            "embedding_model_name": table.served_name,
            "embedding_matryoshka": table.matryoshka,
        }
    else:
        own |= {"model": directory, "model_name": table.served_name}
    return PlannedModel(
        name=table.served_name,
        settings=settings.model_copy(update=own),
        makes_vectors=makes_vectors,
        aliases=table.aliases,
        kv_share=kv_share,
        weight=table.weight,
        has_table=True,
    )
