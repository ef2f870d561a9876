"""Turning running generations into one response: a stream of events, or one document."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final
from uuid import UUID

from starlette.types import Send

from gateway.api.body import ClientGone
from gateway.api.errors import error_body
from gateway.api.openai.chunks import Chunks
from gateway.api.sse import DONE, EventStream, event
from gateway.api.token_usage import CompletionTokensDetails, PromptTokensDetails, Usage
from gateway.errors import GatewayError
from gateway.services.fair_pool import FairPool
from gateway.services.inference import Generation, Piece, Run
from scheduler.request import FinishReason

logger = logging.getLogger(__name__)

OnPiece = Callable[[int, Piece], Awaitable[None]]
Shape = Callable[[Sequence[Piece], Callable[[], bytes]], Awaitable[bytes]]

# So many log-probabilities are spelled where they stand, in a millisecond; more, on a thread.
_FEW_LOGPROBS: Final = 256


async def stream_answer(
    send: Send,
    run: Run,
    chunks: Chunks,
    usage: Callable[[], Usage] | None,
    shape: Shape,
) -> None:
    """Write every piece as it comes, then the `usage` if asked for, then `[DONE]`.

    A piece is framed by `shape`: a slow reader finds many tokens in one.
    The headers wait for the first token, so that a failure before it still gets a status; a
    later one becomes an `error` event, with the `usage` if asked for, after which the stream ends
    without `[DONE]`.
    """
    generations = run.generations
    events = EventStream(send)
    opened = [False] * len(generations)
    remaining = len(generations)

    async def write(index: int, piece: Piece) -> None:
        nonlocal remaining
        data = b"" if opened[index] else chunks.opening(index)
        opened[index] = True
        data += await shape([piece], partial(chunks.piece, index, piece))
        if piece.finish_reason is not None:
            data += chunks.finish(index, piece.finish_reason, run.stop_cause_of(index, piece))
            remaining -= 1
            if not remaining:
                run.complete()
                data += (chunks.usage(usage()) if usage else b"") + DONE
        if data:
            await events.write(data, last=not remaining)

    try:
        await _read_all(generations, write)
    except GatewayError as exc:
        if not events.started:
            raise
        run.fail(exc)
        logger.warning("a stream failed after its headers: %s", exc.detail or exc.message)
        await events.write(event(error_body(exc, usage and usage())), last=True)
    finally:
        events.close()


async def collect_answer(run: Run) -> list[Piece]:
    """Wait for every generation of a run and bill it; return each as one piece."""
    generations = run.generations
    pieces: list[list[Piece]] = [[] for _ in generations]

    async def keep(index: int, piece: Piece) -> None:
        pieces[index].append(piece)

    await _read_all(generations, keep)
    run.complete()
    return [_joined(parts) for parts in pieces]


async def shape_fairly(
    pool: FairPool, tenant_id: UUID, pieces: Sequence[Piece], shape: Callable[[], bytes]
) -> bytes:
    """Return what `shape` makes of some pieces, on a thread of the pool where that takes long."""
    if sum(map(_num_logprobs, pieces)) <= _FEW_LOGPROBS:
        return shape()
    return await pool.run(tenant_id, shape)


def _num_logprobs(piece: Piece) -> int:
    entries = (*piece.logprobs[:1], *piece.prompt_logprobs[-1:])
    width = max((1 + len(entry.top) for entry in entries if entry is not None), default=0)
    return (len(piece.logprobs) + len(piece.prompt_logprobs)) * width


def usage_of(generations: Sequence[Generation], *, choices_per_prompt: int = 1) -> Usage:
    """Sum the tokens of an answer's generations; a prompt counts once for all of its choices."""
    leaders = generations[::choices_per_prompt]
    prompt = sum(g.num_prompt_tokens for g in leaders)
    cached = sum(g.num_cached_tokens for g in leaders)
    output = sum(g.num_output_tokens for g in generations)
    return Usage(
        prompt, output, prompt + output, PromptTokensDetails(cached), CompletionTokensDetails()
    )


def _joined(parts: Sequence[Piece]) -> Piece:
    return Piece(
        "".join(part.text for part in parts),
        parts[-1].finish_reason,
        list(chain.from_iterable(part.logprobs for part in parts)),
        parts[-1].end_logprobs,
        parts[0].prompt_logprobs,
    )


async def _read_all(generations: Sequence[Generation], on_piece: OnPiece) -> None:
    """Hand over the pieces of all generations as they come. Raises: `ClientGone`."""
    if len(generations) == 1:
        await _read(0, generations[0], on_piece, asyncio.Lock())
        return
    turn = asyncio.Lock()
    tasks = [
        asyncio.create_task(_read(index, generation, on_piece, turn))
        for index, generation in enumerate(generations)
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(index: int, generation: Generation, on_piece: OnPiece, turn: asyncio.Lock) -> None:
    while True:
        piece = await generation.next()
        if piece.finish_reason == FinishReason.CANCELLED:
            raise ClientGone
        async with turn:  # two choices must not interleave their writes
            await on_piece(index, piece)
        if piece.finish_reason is not None:
            return
