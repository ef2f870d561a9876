"""From settings to a model that runs: engine, scheduler and tokenizer bound to a name.

Part of the composition root: beside the command line, the only place that opens engines.
A simulated engine starts without torch.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.config import EngineConfig
from engine.contract import Engine, EngineInfo, Pooling
from engine.demo import MODEL_DIR
from engine.embedding_config import EmbeddingConfig, read_embedding_config
from engine.errors import EngineError, ModelError
from engine.generation_config import SamplingDefaults, read_sampling_defaults
from engine.model_dir import check_model_dir
from engine.open import open_engine, open_simulated
from engine.text import ChatTemplate, Tokenizer
from engine.text.tokenizer import read_json_object
from gateway.app.model_plan import PlannedModel, planned_models
from gateway.errors import InvalidRequest, StartupFailed
from gateway.model_settings import DEMO
from gateway.services.admin import changed
from gateway.services.answers import answer_format
from gateway.services.inference import ServedModel, appended_ids
from gateway.settings import Settings
from scheduler.config import AdmissionConfig, FairnessConfig, SchedulerConfig
from scheduler.core import Scheduler
from scheduler.engine_turns import EngineTurns
from scheduler.service import EngineService

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# What else `SLUICE_ENGINE` may be has its device chosen.
_DEVICES = {"cpu": "cpu", "gpu": "cuda"}


@dataclass(frozen=True, slots=True)
class _Source:
    """Say where a model's files are. A directory with a config alone borrows a tokenizer."""

    model_dir: Path
    tokenizer_dir: Path


def load_models(settings: Settings, *, version: str) -> list[ServedModel]:
    """Load all models that the settings name, one after the other; those on a CPU take turns.

    It takes seconds, so call it on a thread. The services' threads are not started.
    Raises: `engine.errors.EngineError`, `StartupFailed`: one line, which names the table of the
    model where there are tables.
    """
    planned = planned_models(settings)
    if len(planned) > 1:
        # What is misspelled in the last table is said before the first is loaded, which takes long.
        check_models(planned)
    turns = EngineTurns() if len(planned) > 1 else None
    return [_attempt(each, partial(_load, version=version, turns=turns)) for each in planned]


def check_models(planned: Sequence[PlannedModel]) -> None:
    """Find what is misspelled of models before any is loaded. Raises: as `load_models`."""
    for each in planned:
        _attempt(each, _check)


def load_model(settings: Settings, *, version: str) -> ServedModel:
    """Load the first model of the settings. Raises: as `load_models`."""
    return _load(planned_models(settings)[0], version=version, turns=None)


def _attempt(planned: PlannedModel, do: Callable[[PlannedModel], Result]) -> Result:
    try:
        return do(planned)
    except (EngineError, StartupFailed) as exc:
        if not planned.has_table:
            raise
        raise StartupFailed(planned.failed(exc)) from exc


def _check(planned: PlannedModel) -> None:
    _scheduler_config(planned.settings)
    model_dir_of(planned)


def _load(planned: PlannedModel, *, version: str, turns: EngineTurns | None) -> ServedModel:
    load = _load_embedding if planned.makes_vectors else _load_chat
    return load(planned, version, turns)


def _load_chat(planned: PlannedModel, version: str, turns: EngineTurns | None) -> ServedModel:
    settings = planned.settings
    config = _scheduler_config(settings)
    source = _source(settings)
    tokenizer = Tokenizer.from_dir(source.tokenizer_dir)
    defaults = sampling_defaults(settings)
    engine = _engine(planned, tokenizer)
    info = engine.info
    _check_vocabulary(source, tokenizer, info)
    template = ChatTemplate.from_dir(source.tokenizer_dir)
    return ServedModel(
        name=planned.name,
        aliases=planned.aliases,
        service=_service(planned, engine, config, turns),
        info=info,
        tokenizer=tokenizer,
        chat_template=template,
        created_s=int(time.time()),
        fingerprint=_fingerprint(planned.name, info, version),
        sampling_defaults=_fitted(defaults, info),
        answer_format=answer_format(
            template, calls=settings.tool_calls, reasoning=settings.reasoning
        ),
    )


def _load_embedding(planned: PlannedModel, version: str, turns: EngineTurns | None) -> ServedModel:
    """Load a model of embeddings, which runs on the CPU."""
    settings = planned.settings
    source, embedding = _embedding_source(settings)
    tokenizer = Tokenizer.from_dir(source.tokenizer_dir)
    _check_appended(source, tokenizer)
    engine = open_engine(
        EngineConfig(
            model_dir=source.model_dir,
            load_format=settings.load_format,
            dtype=settings.dtype or _demo_dtype(source),
            block_size=settings.block_size,
            kv_cache_bytes=settings.kv_cache_bytes,
            kv_share=planned.kv_share,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            num_threads=settings.num_threads,
            native=settings.native,
            pooling=embedding.pooling,
        )
    )
    info = engine.info
    _check_vocabulary(source, tokenizer, info)
    return ServedModel(
        name=planned.name,
        aliases=planned.aliases,
        service=_service(planned, engine, _scheduler_config(settings), turns),
        info=info,
        tokenizer=tokenizer,
        chat_template=None,
        created_s=int(time.time()),
        fingerprint=_fingerprint(planned.name, info, version),
        embedding=embedding,
    )


def _service(
    planned: PlannedModel, engine: Engine, config: SchedulerConfig, turns: EngineTurns | None
) -> EngineService:
    """Put a scheduler over an engine, which takes turns where it computes on the CPU."""
    scheduler = Scheduler(engine.info, config)
    place = None
    if turns is not None and engine.info.device == "cpu":
        place = turns.place(
            planned.weight,
            has_spare_work=scheduler.has_batch_work_alone,
            spare_share=lambda: scheduler.config.fairness.max_throughput_loss,
        )
    return EngineService(scheduler, engine, place=place, name=planned.name)


def _embedding_source(settings: Settings) -> tuple[_Source, EmbeddingConfig]:
    """Find its files. The demo's are those of the chat's demo, whose hidden states are averaged."""
    assert settings.embedding_model is not None
    directory = settings.embedding_model.expanduser()
    if directory == DEMO:
        embedding = EmbeddingConfig(pooling=Pooling.MEAN)
        directory = MODEL_DIR
    else:
        check_model_dir(directory)
        embedding = read_embedding_config(directory)
    if settings.embedding_matryoshka and embedding.dimensions is None:
        embedding = replace(embedding, dimensions=())
    return _Source(directory, directory), embedding


def _check_appended(source: _Source, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that does not do as the file beside it says: the vectors would differ."""
    path = source.tokenizer_dir / "tokenizer_config.json"
    adds = read_json_object(path).get("add_eos_token") is True
    if adds and not appended_ids(tokenizer):
        raise ModelError(
            f"{path}: add_eos_token is true, and tokenizer.json beside it appends nothing; make "
            "the pair anew: load it with transformers' AutoTokenizer, then save_pretrained"
        )


def _check_vocabulary(source: _Source, tokenizer: Tokenizer, info: EngineInfo) -> None:
    if tokenizer.vocab_size > info.vocab_size:
        raise ModelError(
            f"{source.tokenizer_dir / 'tokenizer.json'} has {tokenizer.vocab_size} tokens, the "
            f"model {info.vocab_size}: serve a directory whose files belong together"
        )


def _scheduler_config(settings: Settings) -> SchedulerConfig:
    base = SchedulerConfig(
        fairness=FairnessConfig(max_throughput_loss=settings.scheduler_max_throughput_loss),
        admission=AdmissionConfig(max_num_queued=settings.max_num_queued),
        prefix_caching=settings.prefix_caching,
    )
    named = {"preset": settings.scheduler_preset, "policy": settings.scheduler_policy}
    try:
        return changed(base, named)
    except InvalidRequest as exc:
        raise StartupFailed(f"SLUICE_SCHEDULER_{str(exc.param).upper()}: {exc.message}") from None


def _source(settings: Settings) -> _Source:
    if settings.model is None:
        return _Source(MODEL_DIR, MODEL_DIR)
    directory = settings.model.expanduser()
    check_model_dir(directory)
    needs_no_files = settings.load_format == "dummy" or settings.engine == "simulated"
    if needs_no_files and not (directory / "tokenizer.json").exists():
        logger.warning("%s has no tokenizer.json: borrowing the demo model's", directory)
        return _Source(directory, MODEL_DIR)
    return _Source(directory, directory)


def model_dir_of(planned: PlannedModel) -> Path:
    """Return where a model's files are. Raises: `ModelError`: there can be no model."""
    if planned.makes_vectors:
        return _embedding_source(planned.settings)[0].model_dir
    return _source(planned.settings).model_dir


def sampling_defaults(settings: Settings) -> SamplingDefaults:
    """Say how requests are sampled that do not say. Raises: `ModelError`: the model's file."""
    if settings.generation_config == "none":
        return SamplingDefaults()
    return read_sampling_defaults(_source(settings).model_dir)


def _fitted(defaults: SamplingDefaults, info: EngineInfo) -> SamplingDefaults:
    fitted = defaults.fitted(info)
    if fitted.repetition_penalty != defaults.repetition_penalty:
        logger.warning(
            "this engine has no penalties: the model's repetition_penalty of %g is left out",
            defaults.repetition_penalty,
        )
    return fitted


def engine_config(planned: PlannedModel) -> EngineConfig:
    """Say what engine a chat model is to have. Raises: `ModelError`: there is no such model."""
    settings = planned.settings
    source = _source(settings)
    return EngineConfig(
        model_dir=source.model_dir,
        load_format=settings.load_format,
        dtype=settings.dtype or _demo_dtype(source),
        device=_DEVICES.get(settings.engine, "auto"),
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
        kv_cache_bytes=settings.kv_cache_bytes,
        kv_share=planned.kv_share,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        weight_dtype=settings.weight_dtype,
        kv_dtype=settings.kv_dtype,
        num_threads=settings.num_threads,
        native=settings.native,
    )


def _engine(planned: PlannedModel, tokenizer: Tokenizer) -> Engine:
    config, settings = engine_config(planned), planned.settings
    if settings.engine != "simulated":
        return open_engine(config)
    return open_simulated(
        config,
        profile=settings.engine_profile,
        sleep=time.sleep,
        alphabet=_printable_ids(tokenizer),
    )


def _demo_dtype(source: _Source) -> str | None:
    """Serve the demo as its figures were measured; a model of the user's as it runs fastest."""
    return "float32" if source.model_dir == MODEL_DIR else None


def _printable_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that read as plain words, for an engine that draws them blindly."""
    ids = range(tokenizer.vocab_size)
    return [i for i in ids if (text := tokenizer.decode([i])).isascii() and text.strip().isalnum()]


def _fingerprint(name: str, info: EngineInfo, version: str) -> str:
    """Name what can change an answer: the model, the build, where and how it computes."""
    parts = "\0".join((name, version, info.model_type, info.device, info.dtype))
    return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]
