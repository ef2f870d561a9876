"""Turning running generations into one response: a stream of events, or one document."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from starlette.types import Send

from engine.contract import TokenLogprobs
from engine.scored import ScoredTokens
from gateway.api.body import ClientGone
from gateway.api.held_bytes import GrowingRoom
from gateway.api.json_parts import gathered, giving_way
from gateway.api.openai.chunks import Chunks
from gateway.api.sse import EventStream
from gateway.api.token_usage import CompletionTokensDetails, PromptTokensDetails, Usage
from gateway.api.write_now import WriteNow
from gateway.errors import GatewayError, InvalidRequest
from gateway.services.answers import Event, merged
from gateway.services.fair_pool import FairPool
from gateway.services.inference import Computing, Piece, Run
from gateway.services.loop_share import charged
from scheduler.request import FinishReason

logger = logging.getLogger(__name__)

OnPiece = Callable[[int, Piece], Awaitable[None]]
Shape = Callable[[Piece, Callable[[], Iterator[bytes]]], Awaitable[Iterable[bytes]]]

# So many log-probabilities are spelled where they stand, in a millisecond; more, on a thread.
_FEW_LOGPROBS: Final = 256
# What gathered ones take until they are sent, measured: a token's objects, and of each
# log-probability its two numbers and how it is spelled.
_TOKEN_BYTES: Final = 100
_LOGPROB_BYTES: Final = 40
# An event a token takes more memory than its text.
_MANY_EVENTS: Final = 512
# Of an event that was framed where it stands.
_FEW_PARTS: Final = 8


async def stream_answer(
    send: Send,
    run: Run,
    chunks: Chunks,
    usage: Callable[[], Usage] | None,
    shape: Shape,
    *,
    before_end: Callable[[], Awaitable[None]] | None = None,
    now: WriteNow | None = None,
) -> None:
    """Write every piece as it comes, then the `usage` if asked for, then the end.

    A piece with log-probabilities is framed by `shape`: a slow reader finds many tokens in one.
    Pieces between the first and the last, nearly all, are written by `now` where it can.
    The headers wait for the first token, so that a failure before it still gets a status; a
    later one becomes an `error` event, with the `usage` if asked for, after which the stream ends
    without the end that a good one has. `before_end` is waited for when all but the end is sent.
    """
    generations = run.generations
    events = EventStream(send, now=now)
    opened = [False] * len(generations)
    remaining = len(generations)

    async def write(index: int, piece: Piece) -> None:
        nonlocal remaining
        # First, as events have numbers.
        opening = b"" if opened[index] else chunks.opening(index)
        opened[index] = True
        framed: Iterable[bytes]
        if piece.logprobs or piece.prompt_logprobs:
            framed = await shape(piece, partial(chunks.piece, index, piece))
        else:
            framed = tuple(chunks.piece(index, piece))
            if piece.finish_reason is None and not opening and len(framed) <= _FEW_PARTS:
                data = b"".join(framed)
                if data and not events.write_now(data):
                    await events.write(data)
                return
        ending = b""
        if piece.finish_reason is not None:
            ending = chunks.finish(index, piece.finish_reason, run.stop_cause_of(index, piece))
            remaining -= 1
            if not remaining:
                run.complete()
                if before_end is not None:
                    await write_all((opening, *framed, ending), last=False)
                    opening, framed, ending = b"", (), b""
                    await before_end()
                ending += (chunks.usage(usage()) if usage else b"") + chunks.end()
        await write_all((opening, *framed, ending), last=not remaining)

    async def write_all(parts: Sequence[bytes], *, last: bool) -> None:
        if len(parts) <= _FEW_PARTS:
            if data := b"".join(parts):
                await events.write(data, last=last)
            return
        *before, data = gathered(parts)
        for part in before:
            await events.write(part)
            await asyncio.sleep(0)
        await events.write(data, last=last)

    try:
        await _read_all(generations, write)
    except GatewayError as exc:
        if not events.started:
            raise
        run.fail(exc)
        logger.warning("a stream failed after its headers: %s", exc.detail or exc.code)
        await events.write(chunks.error(exc, usage and usage()), last=True)
    finally:
        events.close()


class Gathering:
    """Gather the pieces of one generation to one, each as it comes."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._logprobs = ScoredTokens()
        self._prompt_logprobs: Sequence[TokenLogprobs | None] = ()
        self._events: list[Event] = []
        self._most_events = _MANY_EVENTS
        self._vectors: list[Sequence[float]] = []
        self._last: Piece | None = None

    def add(self, piece: Piece) -> None:
        self._text.write(piece.text)
        self._logprobs.extend(piece.logprobs)
        self._prompt_logprobs = self._prompt_logprobs or piece.prompt_logprobs
        self._events.extend(piece.events)
        if len(self._events) > self._most_events:
            self._events = merged(self._events)
            # Calls are not joined, and there may be thousands: not with each token again.
            self._most_events = max(_MANY_EVENTS, 2 * len(self._events))
        self._vectors += piece.vectors
        if piece.finish_reason is not None:
            self._last = piece

    def whole(self) -> Piece:
        """Return all of them as one, once the last has come."""
        assert self._last is not None, "more is to come"
        return Piece(
            self._text.getvalue(),
            self._last.finish_reason,
            self._logprobs,
            self._last.end_logprobs,
            self._prompt_logprobs,
            merged(self._events),
            self._vectors,
        )


async def collect_answer(run: Run, gatherings: Sequence[Gathering], room: GrowingRoom) -> None:
    """Gather every generation of a run and bill it. Raises: as `gather_answer`."""
    await gather_answer(run, gatherings, room)
    run.complete()


async def gather_answer(run: Run, gatherings: Sequence[Gathering], room: GrowingRoom) -> None:
    """Gather every generation of a run.

    What log-probabilities take is taken from `room`. Raises: `AnswersTooLarge`,
    `AnswersSaturated`: there is no more of it; `InvalidRequest`: one answer needs all that its
    tenant has.
    """

    async def keep(index: int, piece: Piece) -> None:
        if size_bytes := _held_bytes(piece):
            if room.is_too_small(size_bytes):
                raise InvalidRequest(
                    "The log-probabilities of this answer are more than the server gathers for "
                    "one tenant; ask for fewer tokens or likeliest tokens, or stream them.",
                    param="logprobs",
                )
            room.grow(size_bytes)
        gatherings[index].add(piece)

    await _read_all(run.generations, keep)
    room.is_whole()


async def shape_fairly(
    pool: FairPool, tenant_id: UUID, piece: Piece, shape: Callable[[], Iterator[bytes]]
) -> Iterable[bytes]:
    """Return what `shape` makes of a piece, on a thread of the pool where that takes long."""
    if _num_logprobs(piece) <= _FEW_LOGPROBS:
        return shape()
    return await pool.run(tenant_id, lambda: list(giving_way(shape())))


async def send_document(send: Send, parts: list[bytes]) -> None:
    """Send a JSON document, and let go of each part once it is on its way."""
    headers = [
        (b"content-length", b"%d" % sum(map(len, parts))),
        (b"content-type", b"application/json"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    parts.reverse()
    while parts:
        part = parts.pop()
        await send({"type": "http.response.body", "body": part, "more_body": bool(parts)})
        if parts:
            # A fast client's socket takes it all, and encrypting that takes a while.
            await asyncio.sleep(0)


def _num_logprobs(piece: Piece) -> int:
    if not piece.logprobs and not piece.prompt_logprobs:
        return 0
    entries = (*piece.logprobs[:1], *piece.prompt_logprobs[-1:])
    width = max((1 + len(entry.top_ids) for entry in entries if entry is not None), default=0)
    return (len(piece.logprobs) + len(piece.prompt_logprobs)) * width


def _held_bytes(piece: Piece) -> int:
    num_tokens = len(piece.logprobs) + len(piece.prompt_logprobs)
    return num_tokens and num_tokens * _TOKEN_BYTES + _num_logprobs(piece) * _LOGPROB_BYTES


def usage_of(generations: Sequence[Computing], *, choices_per_prompt: int = 1) -> Usage:
    """Sum the tokens of an answer's generations; a prompt counts once for all of its choices."""
    leaders = generations[::choices_per_prompt]
    prompt = sum(g.num_prompt_tokens for g in leaders)
    cached = sum(g.num_cached_tokens for g in leaders)
    output = sum(g.num_output_tokens for g in generations)
    reasoning = sum(g.num_reasoning_tokens for g in generations)
    return Usage(
        prompt,
        output,
        prompt + output,
        PromptTokensDetails(cached),
        CompletionTokensDetails(reasoning),
    )


async def _read_all(generations: Sequence[Computing], on_piece: OnPiece) -> None:
    """Hand over the pieces of all generations as they come. Raises: `ClientGone`."""
    if len(generations) == 1:
        await _read(0, generations[0], on_piece)
        return
    turn = asyncio.Lock()
    tasks = [
        asyncio.create_task(charged(_read(index, generation, on_piece, turn)))
        for index, generation in enumerate(generations)
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    index: int, generation: Computing, on_piece: OnPiece, turn: asyncio.Lock | None = None
) -> None:
    """Hand over one generation's pieces; of several, two must not interleave their writes."""
    while True:
        piece = await generation.next()
        if piece.finish_reason == FinishReason.CANCELLED:
            raise ClientGone
        if turn is None:
            await on_piece(index, piece)
        else:
            async with turn:
                await on_piece(index, piece)
        if piece.finish_reason is not None:
            return
