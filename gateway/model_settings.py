"""The settings of a model: those that each may have for itself, and the tables of `[[models]]`.

A table of `sluice.toml` is one model that this process serves. What it leaves out is as the setting
of the same name; its share of the memory for KV caches, where it names none, is an equal part of
what the others leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from gateway.readable_number import read_number

DEMO: Final = Path("demo")
DEMO_NAMES: Final = {"chat": "sluice-demo", "embedding": "sluice-demo-embedding"}
MAX_MODELS: Final = 16
_MAX_NAME_CHARS: Final = 200
# More than sums of decimals are off by, and less than anybody's share.
_ROUNDING: Final = 1e-9
# What says nothing of a model of that role.
_FOREIGN: Final = {
    "chat": ("matryoshka",),
    "embedding": ("generation_config", "tool_calls", "reasoning"),
}


class ModelOptions(BaseModel):
    """Hold what can be set of each model, and of all at once."""

    load_format: Literal["auto", "dummy"] = Field(
        default="auto", description="`dummy`: random weights in the shape of config.json."
    )
    engine: Literal["auto", "cpu", "gpu", "simulated"] = Field(
        default="auto", description="Where the model runs; `simulated` needs no weights."
    )
    engine_profile: str = Field(
        default="cpu-demo", description="The step-cost profile that prices a simulated engine."
    )
    generation_config: Literal["auto", "none"] = Field(
        default="auto",
        description="Sampling where a request does not say: the model's own, or `none` of it.",
    )
    tool_calls: Literal["auto", "hermes", "llama3", "mistral", "none"] = Field(
        default="auto",
        description="How the model writes calls of tools; `auto`: as its chat template tells.",
    )
    reasoning: Literal["auto", "think", "none"] = Field(
        default="auto",
        description="`think`: what the model writes in `<think>` tags is `reasoning_content`; "
        "`auto`: if its chat template knows them.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Type of weights and KV cache; unset: what computes fastest."
    )
    weight_dtype: Literal["fp8"] | None = Field(
        default=None, description="`fp8`: linear layers in 8 bits; unset: as SLUICE_DTYPE."
    )
    kv_dtype: Literal["fp8"] | None = Field(
        default=None, description="`fp8`: the KV cache in 8 bits; unset: as SLUICE_DTYPE."
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="Longest context, as 4096, 4k (4,000) or 4K (4,096); unset: the model's.",
    )
    max_num_seqs: int = Field(default=256, ge=1, description="Sequences in one step at most.")
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that one step computes at most; unset: 2,048, or 256 on a CPU.",
    )
    max_num_queued: int = Field(default=2048, ge=1, description="Requests waiting at most.")
    scheduler_policy: str = Field(
        default="vtc", description="Who is served next; or three: tenants/keys/requests."
    )
    scheduler_preset: str = Field(
        default="mixed", description="How steps are filled: mixed, low-latency or high-throughput."
    )
    scheduler_max_throughput_loss: float = Field(
        default=0.2,
        ge=0,
        le=0.9,
        description="What fair shares of the rows that decode may cost: a share of throughput.",
    )

    @field_validator("dtype", "weight_dtype", "kv_dtype", mode="before")
    @classmethod
    def _read_dtype(cls, value: object) -> object:
        # As other servers spell them.
        spelled = {"auto": None, "float": "float32", "half": "float16", "fp8_e4m3": "fp8"}
        return spelled.get(str(value), value)

    @field_validator("generation_config", mode="before")
    @classmethod
    def _read_generation_config(cls, value: object) -> object:
        # vLLM's word for not reading the file.
        return "none" if value == "vllm" else value

    @field_validator("max_model_len", "max_num_batched_tokens", mode="before")
    @classmethod
    def _read_size(cls, value: object) -> object:
        return read_number(value) if isinstance(value, str) else value


class ModelTable(ModelOptions):
    """Hold one table of `[[models]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path = Field(description="A Hugging Face model directory, or `demo`.")
    role: Literal["chat", "embedding"] = Field(
        default="chat", description="What it is for: `chat`, or `embedding`, for /v1/embeddings."
    )
    name: str | None = Field(
        default=None, description="The name clients use; unset: the directory's name."
    )
    aliases: tuple[str, ...] = Field(
        default=(), description="Other names that clients may use for it."
    )
    kv_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Its share of the memory for KV caches; unset: what others leave, in equal "
        "parts.",
    )
    weight: float = Field(
        default=1.0,
        ge=0.01,
        le=100,
        description="Its part of the processors while others have work too, by weight.",
    )
    matryoshka: bool = Field(
        default=False,
        description="Its vectors may be cut short, though its config.json does not say so.",
    )

    @property
    def served_name(self) -> str:
        """Return what it is called, where it has no name of its own by its directory."""
        if self.name is not None:
            return self.name
        if self.directory == DEMO:
            return DEMO_NAMES[self.role]
        return self.directory.expanduser().resolve().name

    @property
    def own_options(self) -> dict[str, object]:
        """Return the settings that this table has instead of those for all."""
        names = self.model_fields_set & ModelOptions.model_fields.keys()
        return {name: getattr(self, name) for name in names}


def kv_shares(tables: Sequence[ModelTable]) -> list[float]:
    """Return each model's share of the memory for KV caches; they add up to 1 at most.

    Raises: `ValueError`: shares that name more than there is, or leave nothing to the others.
    """
    named = sum(table.kv_share for table in tables if table.kv_share is not None)
    num_unnamed = sum(table.kv_share is None for table in tables)
    if named > 1 + _ROUNDING:
        raise ValueError(f"the shares of all models add up to {named:g}, which is more than 1")
    left = 1 - named
    if num_unnamed and left <= _ROUNDING:
        raise ValueError("the shares of the other models leave nothing to one that has none")
    return [left / num_unnamed if each.kv_share is None else each.kv_share for each in tables]


def check_tables(tables: Sequence[ModelTable]) -> None:
    """Check what tables say together. Raises: `PydanticCustomError`: with `table` and `key`."""
    if len(tables) > MAX_MODELS:
        _refuse(MAX_MODELS, "directory", f"one process serves {MAX_MODELS} models at most")
    owners: dict[str, int] = {}
    for index, table in enumerate(tables):
        _check_role(index, table)
        for key, name in (("name", table.served_name), *(("aliases", a) for a in table.aliases)):
            if not 1 <= len(name) <= _MAX_NAME_CHARS or not name.isprintable() or "," in name:
                said = f"a name has 1 to {_MAX_NAME_CHARS} characters, and no comma"
                _refuse(index, key, f"{said}: {name[:40]!r}")
            if owners.setdefault(name, index) != index:
                _refuse(index, key, f"two models are called {name!r}: name one of them anew")
            if key == "aliases" and name == table.served_name:
                _refuse(index, key, f"{name!r} is its name already")
    try:
        kv_shares(tables)
    except ValueError as exc:
        last = max(range(len(tables)), key=lambda at: (tables[at].kv_share is not None, at))
        _refuse(last, "kv_share", str(exc))


def _check_role(index: int, table: ModelTable) -> None:
    """Refuse what means nothing of such a model."""
    for name in _FOREIGN[table.role]:
        if name in table.model_fields_set:
            _refuse(index, name, f"a model of the role {table.role!r} has no such option")
    own_engine = table.own_options.get("engine", "auto")
    if table.role == "embedding" and own_engine not in ("auto", "cpu"):
        _refuse(index, "engine", "a model of the role 'embedding' runs on the CPU")


def _refuse(table: int, key: str, message: str) -> NoReturn:
    # In braces the message would be a template.
    raise PydanticCustomError("models", "{said}", {"said": message, "table": table, "key": key})
