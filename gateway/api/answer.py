"""Turning running generations into one response: a stream of events, or one document."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Send

from gateway.api.body import ClientGone
from gateway.api.chunks import Chunks
from gateway.api.errors import error_body
from gateway.api.schemas import CompletionTokensDetails, PromptTokensDetails, Usage
from gateway.api.sse import DONE, EventStream, event
from gateway.errors import GatewayError
from gateway.services.inference import Generation, Piece
from scheduler.request import FinishReason

logger = logging.getLogger(__name__)

OnPiece = Callable[[int, Piece], Awaitable[None]]


async def stream_answer(
    send: Send, generations: Sequence[Generation], chunks: Chunks, *, include_usage: bool
) -> None:
    """Write every piece as it comes, then the usage, then `[DONE]`.

    The headers wait for the first token, so that a failure before it still gets a status; a
    later one becomes an `error` event, after which the stream ends without `[DONE]`.
    """
    events = EventStream(send)
    opened = [False] * len(generations)
    remaining = len(generations)

    async def write(index: int, piece: Piece) -> None:
        nonlocal remaining
        data = b"" if opened[index] else chunks.opening(index)
        opened[index] = True
        if piece.text:
            data += chunks.text(index, piece.text)
        if piece.finish_reason is not None:
            data += chunks.finish(index, piece.finish_reason)
            remaining -= 1
            if not remaining:
                data += (chunks.usage(usage_of(generations)) if include_usage else b"") + DONE
        if data:
            await events.write(data, last=not remaining)

    try:
        await _read_all(generations, write)
    except GatewayError as exc:
        if not events.started:
            raise
        logger.warning("a stream failed after its headers: %s", exc.detail or exc.message)
        await events.write(event(error_body(exc)), last=True)


async def collect_answer(generations: Sequence[Generation]) -> list[tuple[str, str]]:
    """Wait for every generation; return its whole text and finish reason."""
    texts: list[list[str]] = [[] for _ in generations]
    reasons = [""] * len(generations)

    async def keep(index: int, piece: Piece) -> None:
        texts[index].append(piece.text)
        reasons[index] = piece.finish_reason or ""

    await _read_all(generations, keep)
    return [("".join(parts), reason) for parts, reason in zip(texts, reasons, strict=True)]


def usage_of(generations: Sequence[Generation]) -> Usage:
    """Sum the tokens of an answer's generations."""
    prompt = sum(g.num_prompt_tokens for g in generations)
    output = sum(g.num_output_tokens for g in generations)
    cached = sum(g.num_cached_tokens for g in generations)
    return Usage(
        prompt, output, prompt + output, PromptTokensDetails(cached), CompletionTokensDetails()
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


async def _read(index: int, generation: Generation, on_piece: OnPiece, turn: asyncio.Lock) -> None:
    while True:
        piece = await generation.next()
        if piece.finish_reason == FinishReason.CANCELLED:
            raise ClientGone
        async with turn:  # two choices must not interleave their writes
            await on_piece(index, piece)
        if piece.finish_reason is not None:
            return
