"""The stream of one request, on the event loop's side."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from engine.contract import TokenLogprobs
from scheduler.request import FinishReason, RequestOutput
from scheduler.stream import MAX_DELTA_TOKENS, StreamDelta, TokenStream

pytestmark = pytest.mark.anyio


def output(*token_ids: int, total: int, end: FinishReason | None = None) -> RequestOutput:
    return RequestOutput("r", token_ids, end, 8, total)


def make_stream(cancelled: list[str] | None = None) -> TokenStream:
    return TokenStream("r", ([] if cancelled is None else cancelled).append)


async def test_slow_reader_finds_everything_merged() -> None:
    """Outputs that came while nobody read make one delta, the end included."""
    stream = make_stream()
    stream.push(output(1, total=1))
    stream.push(output(2, 3, total=3))
    stream.push(output(total=4, end=FinishReason.STOP))
    assert await stream.next() == StreamDelta([1, 2, 3], FinishReason.STOP, 8, 4, None)


async def test_single_tokens_are_merged_with_outputs() -> None:
    """A token that is pushed alone is as one in an output."""
    stream = make_stream()
    stream.push_token(1, 8, 1)
    stream.push(output(2, 3, total=3))
    assert await stream.next() == StreamDelta([1, 2, 3], None, 8, 3, None)
    reader = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    stream.push_token(4, 8, 4)
    assert await reader == StreamDelta([4], None, 8, 4, None)
    assert (stream.num_output_tokens, stream.num_cached_tokens) == (4, 8)


async def test_slow_reader_finds_logprobs_merged() -> None:
    """Logprobs merge like the tokens that they go with, and a prompt's come in one delta."""
    stream = make_stream()
    scored = [TokenLogprobs(token_id, -0.5, 1) for token_id in range(4)]
    prompt = (None, scored[3])
    stream.push(RequestOutput("r", (), None, 8, 0, prompt_logprobs=prompt))
    for token_id in (0, 1):
        stream.push(RequestOutput("r", (token_id,), None, 8, 1, logprobs=(scored[token_id],)))
    assert await stream.next() == StreamDelta([0, 1], None, 8, 1, None, scored[:2], prompt)
    stream.push(RequestOutput("r", (2,), None, 8, 3, logprobs=(scored[2],)))
    stream.push(output(total=4, end=FinishReason.STOP))
    assert await stream.next() == StreamDelta([2], FinishReason.STOP, 8, 4, None, [scored[2]])


async def test_a_reader_that_stood_still_gets_a_bounded_delta_at_a_time() -> None:
    """Nothing is lost between the cuts, the end comes last, and the loop turns in between."""
    stream, turns = make_stream(), 0
    num_tokens = 2 * MAX_DELTA_TOKENS + 5
    scored = [TokenLogprobs(token_id, -0.5, 1) for token_id in range(num_tokens + 1)]
    prompt = (None, scored[3])
    stream.push(RequestOutput("r", (), None, 8, 0, prompt_logprobs=prompt))
    for token_id in range(num_tokens):
        stream.push(
            RequestOutput("r", (token_id,), None, 8, token_id + 1, logprobs=(scored[token_id],))
        )
    end = RequestOutput("r", (), FinishReason.STOP, 8, num_tokens + 1, logprobs=(scored[-1],))
    stream.push(end)
    assert stream.num_output_tokens == num_tokens + 1

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    deltas = [await stream.next()]
    turn()
    deltas += [await stream.next(), await stream.next()]
    assert turns >= 2
    assert [delta.num_output_tokens for delta in deltas] == [256, 512, num_tokens + 1]
    assert [delta.finish_reason for delta in deltas] == [None, None, FinishReason.STOP]
    assert [delta.prompt_logprobs for delta in deltas] == [prompt, None, None]
    assert [*chain(*(delta.token_ids for delta in deltas))] == list(range(num_tokens))
    assert [*chain(*(delta.logprobs or () for delta in deltas))] == scored
    assert all(len(delta.logprobs or ()) >= len(delta.token_ids) for delta in deltas)
    with pytest.raises(StopAsyncIteration):
        await stream.next()


async def test_waiting_reader_is_woken_by_each_output() -> None:
    """A reader that keeps up gets a delta for each output."""
    stream = make_stream()
    reader = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    stream.push(output(1, total=1))
    assert (await reader).token_ids == [1]
    stream.push(output(2, total=2, end=FinishReason.LENGTH))
    assert [delta.token_ids async for delta in stream] == [[2]]


async def test_nothing_follows_the_last_delta() -> None:
    """After the delta with a finish reason the stream has ended."""
    stream = make_stream()
    stream.push(output(total=0, end=FinishReason.CANCELLED))
    await stream.next()
    with pytest.raises(StopAsyncIteration):
        await stream.next()


async def test_cancelled_reader_loses_nothing() -> None:
    """A reader whose task was cancelled leaves what came for the next read."""
    stream = make_stream()
    reader = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    stream.push(output(1, total=1))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    stream.push(output(2, total=2))
    assert (await stream.next()).token_ids == [1, 2]


async def test_cancel_stops_mattering_at_the_end() -> None:
    """Cancelling asks for the end while there is none, read or unread, and never after."""
    cancelled: list[str] = []
    stream = make_stream(cancelled)
    stream.cancel()
    assert cancelled == ["r"]
    stream.push(output(total=0, end=FinishReason.CANCELLED))
    stream.cancel()
    await stream.next()
    stream.cancel()
    assert cancelled == ["r"]
