"""The part of the composition root that runs the items of batches on this process's engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from gateway.api.anthropic.messages import Messages
from gateway.api.held_bytes import held_answers
from gateway.api.openai.chat import Chat
from gateway.api.openai.completions import Completions
from gateway.api.openai.embeddings import Embeddings
from gateway.api.openai.items import ItemRunner
from gateway.api.openai.kinds import AnswerKind
from gateway.api.responses.responses import Responses
from gateway.app.accounting import Accounting
from gateway.errors import ModelNotFound
from gateway.services.batches.worker import BatchWorker
from gateway.services.batches.worker_gate import ByteGate
from gateway.services.batches.worker_items import ItemDesk
from gateway.services.batches.worker_payers import Payers
from gateway.services.batches.worker_storage import FullStorage
from gateway.services.health import OverloadWatch
from gateway.services.health.overload import Level
from gateway.services.inference import LeasedInference, ModelRegistry
from gateway.services.loop_share import LoopShare
from gateway.services.requests import EndedRequests
from gateway.settings import Settings
from gateway.store import Store

# Of the memory for answers that are gathered: beside that of requests, which wait for nothing here.
_ANSWERS_PART: Final = 4


@asynccontextmanager
async def running_batches(
    settings: Settings,
    store: Store,
    books: Accounting,
    models: ModelRegistry,
    inference: LeasedInference,
    loop_share: LoopShare,
    overload: OverloadWatch,
    ended: EndedRequests,
    on_expired: Callable[[int], None],
) -> AsyncIterator[BatchWorker]:
    """Run items of batches while the block runs, with what the engines have left.

    `on_expired` is told how many were taken back from workers that are gone.
    """
    ignores_unknown = settings.unknown_parameters == "ignore"
    kinds: dict[str, AnswerKind[Any]] = {
        "/v1/chat/completions": Chat(ignores_unknown=ignores_unknown),
        "/v1/completions": Completions(ignores_unknown=ignores_unknown),
        "/v1/messages": Messages(ignores_unknown=ignores_unknown),
        "/v1/responses": Responses(ignores_unknown=ignores_unknown),
        "/v1/embeddings": Embeddings(ignores_unknown=ignores_unknown),
    }
    answers = held_answers((settings.answer_memory_mib << 20) // _ANSWERS_PART)
    runner = ItemRunner(kinds, models, inference, books.quotas, answers, loop_share, ended)
    storage = FullStorage(store.batches, max_stored_bytes=settings.tenant_storage_mib << 20)
    worker = BatchWorker(
        store.batches,
        store.batch_queue,
        ItemDesk(store.file_storage, runner, ByteGate()),
        Payers(store.keys, store.prices),
        store.batch_heartbeat,
        {name: model.service for model in models for name in (model.name, *model.aliases)},
        is_full=storage.has,
        serves=partial(_serves, models),
        is_pressed=lambda model: overload.level_of(model) >= Level.BUSY or books.spool.is_full,
        on_expired=on_expired,
    )
    books.on_written.append(worker.written)
    async with (
        storage.running(),
        store.batch_heartbeat.beating(worker.lost, worker.woken),
        worker.running(),
    ):
        yield worker


def _serves(models: ModelRegistry, name: str) -> bool:
    try:
        models.get(name)
    except ModelNotFound:
        return False
    return True
