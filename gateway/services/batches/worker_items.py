"""One run of one item: its line is read, run, and turned into a line of an output file.

A result goes to the journal together with its bill, in one write, and from there into the database
in one transaction. Before that write nothing was billed, after it nothing is lost, and whether the
run still held its item is decided in that transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID, uuid5

import msgspec

from gateway.domain.batch import Batch, ClaimedItem, ItemResult, ItemRun, PausedFor
from gateway.errors import GatewayError, InternalFailure, StorageUnavailable, StoredFileMissing
from gateway.ports import FileStorage
from gateway.services.batches.worker_fates import MAX_RETRIES, Fate, backoff_s, fate_of
from gateway.services.batches.worker_gate import ByteGate
from gateway.services.batches.worker_payers import Payer
from gateway.services.batches.worker_ports import ItemAnswer, ItemOrder, RunsItems
from gateway.telemetry.logs import without_text

logger = logging.getLogger(__name__)

_LATER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Done:
    """Say that a result is in the journal, and what it took."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Say that an item is to go back, after a while, and whether its batch has to wait for more."""

    is_unharmed: bool
    after_s: float = 0.0
    paused_for: PausedFor | None = None
    # For its tenant: which limit it is, or which model, and what helps.
    because: str | None = None
    # What is wrong is wrong with this server, or with what all of the tenant's items need.
    is_busy: bool = False


class _Line(msgspec.Struct):
    """Hold what validating has looked at: of a field that is there twice, the last."""

    custom_id: msgspec.Raw
    body: msgspec.Raw


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response
    error: None = None


_lines: Final = msgspec.json.Decoder(_Line)
_string: Final = msgspec.json.Decoder(str)


class ItemDesk:
    """Run items, each to its end."""

    def __init__(self, storage: FileStorage, runner: RunsItems, gate: ByteGate) -> None:
        self._storage = storage
        self._runner = runner
        self._gate = gate
        self._missing: set[UUID] = set()

    async def run(
        self, batch: Batch, payer: Payer, item: ClaimedItem, on_begun: Callable[[], None]
    ) -> Done | GivenUp:
        """Run an item; `on_begun` is called once it is paid for and with the engine.

        Cancelled, it leaves nothing behind, and nothing is in the journal.
        """
        leave = await self._gate.enter(item.tenant_id, item.size_bytes)
        try:
            line = await self._line(batch, item)

            def begun() -> None:
                leave()
                on_begun()

            order = ItemOrder(
                principal=payer.principal,
                endpoint=batch.draft.endpoint,
                parts=[bytes(line.body)],
                request_id=request_id_of(item.run),
                prices=payer.prices,
                expires_at_s=batch.expires_at.timestamp(),
                begun=begun,
                batch_id=batch.id,
                attempt=item.num_attempts,
                previous_id=_previous_id(item.run),
            )
            custom_id = _string.decode(line.custom_id)
            # What was read goes with the parts.
            del line
            return await self._answer(order, item, custom_id)
        except GatewayError as exc:
            return given_up(exc, item)
        finally:
            leave()

    async def _answer(self, order: ItemOrder, item: ClaimedItem, custom_id: str) -> Done | GivenUp:
        try:
            answer = await self._runner.run(order)
        except Exception as exc:
            error = (
                exc if isinstance(exc, GatewayError) else InternalFailure(detail=without_text(exc))
            )
            if error is not exc:
                logger.exception("%s failed", item.run)
            if not _is_answer(error, item):
                raise error from exc
            answer = self._runner.refuse(order, error)
        try:
            body = _output_line(order.request_id, custom_id, answer)
            # Nothing is awaited from here on: it is billed with its result, or not at all.
            answer.keep(ItemResult(item.run, answer.is_error, body))
        finally:
            answer.drop()
        return Done(answer.num_tokens)

    async def _line(self, batch: Batch, item: ClaimedItem) -> _Line:
        read = self._storage.read(
            batch.draft.input_file_id, offset_bytes=item.offset_bytes, size_bytes=item.size_bytes
        )
        try:
            async with aclosing(read):
                chunks = [chunk async for chunk in read]
        except StoredFileMissing as exc:
            # Nothing that the tenant did: another process may well find it.
            self._tell_missing(batch.draft.input_file_id)
            raise StorageUnavailable(detail=exc.detail) from exc
        try:
            try:
                return _lines.decode(b"".join(chunks))
            except RecursionError:
                # As deep as it may be: it was validated on a thread, whose stack leaves more.
                return await asyncio.to_thread(_lines.decode, b"".join(chunks))
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            # It was valid as the batch was made: the storage has something else there.
            raise StorageUnavailable(
                detail=f"{item.run} cannot be read: {without_text(exc)}"
            ) from exc

    def _tell_missing(self, file_id: UUID) -> None:
        """Log once what an operator is to mend."""
        if file_id not in self._missing:
            self._missing.add(file_id)
            logger.error(
                "the input file-%s of a batch is not in this process's file storage, and its "
                "requests wait: SLUICE_FILE_STORAGE is to be the same for all processes",
                file_id.hex,
            )


def request_id_of(run: ItemRun) -> UUID:
    """Name the request of a run: each run of an item has one of its own."""
    return uuid5(run.batch_id, f"{run.line}:{run.generation}")


def _previous_id(run: ItemRun) -> UUID | None:
    if run.generation <= 1:
        return None
    return request_id_of(replace(run, generation=run.generation - 1))


def given_up(error: GatewayError, item: ClaimedItem) -> GivenUp:
    """Say how an item goes back whose run failed without an answer."""
    fate = fate_of(error)
    if isinstance(fate, PausedFor):
        because = f"Line {item.run.line}: {error.message}"
        return GivenUp(is_unharmed=True, paused_for=fate, because=because)
    if fate is Fate.AGAIN:
        logger.warning("%s failed and is run again: %s", item.run, error.detail or error.code)
        return GivenUp(is_unharmed=False, after_s=backoff_s(item.num_attempts))
    after_s = _LATER_S if error.retry_after_s is None else error.retry_after_s
    return GivenUp(is_unharmed=True, after_s=after_s, is_busy=True)


def _is_answer(error: GatewayError, item: ClaimedItem) -> bool:
    """Tell whether an error is the item's answer: its own fault, or one that comes every time."""
    if isinstance(error, InternalFailure):
        return item.num_attempts > MAX_RETRIES
    return fate_of(error) is Fate.ANSWER


def _output_line(request_id: UUID, custom_id: str, answer: ItemAnswer) -> bytes:
    response = _Response(answer.status, request_id.hex, msgspec.Raw(answer.body))
    line = _OutputLine(f"batch_req_{request_id.hex}", custom_id, response)
    return msgspec.json.encode(line)
