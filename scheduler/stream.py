"""The one slot between the engine's steps and the reader of one request.

A slow reader finds all that has come since it last looked, merged into one delta, so nothing
piles up per token. It belongs to the event loop's thread: no locks. What one delta brings is
bounded, and between two the loop goes on: a reader that stood still through ten thousand tokens
would otherwise hold everybody up when it looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from engine.contract import TokenLogprobs
from scheduler.facts import RequestFacts
from scheduler.request import FinishReason, RequestOutput

# A millisecond or two of making text, and events, of them.
MAX_DELTA_TOKENS: Final = 256


class StreamDelta(NamedTuple):
    """Give what is new since the last delta; the counts are cumulative.

    `finish_reason` is set on the last one. `error` is for logs, never for the caller. `logprobs`
    go with `token_ids`, and that of an end token follows them; `prompt_logprobs` are in one delta,
    which may have no tokens. One is made for every event of a stream: a frozen dataclass takes six
    times as long to make.
    """

    token_ids: list[int]
    finish_reason: FinishReason | None
    num_cached_tokens: int
    num_output_tokens: int
    error: str | None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None


class TokenStream:
    """Read a request's tokens with `next`, or `async for`; call `cancel` when done, always.

    `num_output_tokens` and `num_cached_tokens` are what has come, read or not; so are, once it has
    ended, `finish_reason`, `num_prefilled_tokens`, `facts` and what was `pooled`. One that is not
    `is_promised` is served as if no time to its first token had been promised (see
    `scheduler.request.Admit`).
    """

    __slots__ = (
        "_error",
        "_is_behind",
        "_is_new",
        "_logprobs",
        "_num_taken",
        "_on_cancel",
        "_prompt_logprobs",
        "_token_ids",
        "_waiter",
        "facts",
        "finish_reason",
        "is_promised",
        "num_cached_tokens",
        "num_output_tokens",
        "num_prefilled_tokens",
        "pooled",
        "request_id",
    )

    def __init__(
        self, request_id: str, on_cancel: Callable[[str], None], *, is_promised: bool = True
    ) -> None:
        self.request_id = request_id
        self.is_promised = is_promised
        self._on_cancel = on_cancel
        self._token_ids: list[int] = []
        self._num_taken = 0
        self._is_behind = False
        self._logprobs: list[TokenLogprobs] | None = None
        self._prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
        # Whether something has come since the last delta that was not cut.
        self._is_new = False
        self._error: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.finish_reason: FinishReason | None = None
        self.facts: RequestFacts | None = None
        self.pooled: Sequence[float] | None = None
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.num_prefilled_tokens = 0

    def push(self, output: RequestOutput) -> None:
        """Merge a step's output into the slot; for the service."""
        assert output.request_id == self.request_id
        self._token_ids += output.token_ids
        if output.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        self._error = output.error
        self.num_prefilled_tokens = output.num_prefilled_tokens
        self.finish_reason = output.finish_reason
        self.facts = output.facts
        self.pooled = output.pooled
        self._note(output.num_cached_tokens, output.num_output_tokens)

    def push_token(self, token_id: int, num_cached_tokens: int, num_output_tokens: int) -> None:
        """Do the same with a token that is not the last; the counts are as of an output."""
        self._token_ids.append(token_id)
        self._note(num_cached_tokens, num_output_tokens)

    def _note(self, num_cached_tokens: int, num_output_tokens: int) -> None:
        self._is_new = True
        self.num_cached_tokens = num_cached_tokens
        self.num_output_tokens = num_output_tokens
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> StreamDelta:
        """Wait until there is something new and take it.

        Raises: `StopAsyncIteration`: the last delta was taken already.
        """
        if not self._is_new:
            if self.finish_reason is not None:
                raise StopAsyncIteration
            assert self._waiter is None, "a stream has one reader"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        elif self._is_behind:
            await asyncio.sleep(0)
        return self._take()

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> StreamDelta:
        return await self.next()

    def cancel(self) -> None:
        """End the request if it has not ended; may be called at any time, again and again."""
        if self.finish_reason is None:
            self._on_cancel(self.request_id)

    def _take(self) -> StreamDelta:
        assert self._is_new
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        self._is_behind = len(self._token_ids) > MAX_DELTA_TOKENS
        if self._is_behind:
            token_ids, logprobs = self._cut()
            return StreamDelta(
                token_ids,
                None,
                self.num_cached_tokens,
                self._num_taken,
                None,
                logprobs,
                prompt_logprobs,
            )
        token_ids, logprobs = self._token_ids, self._logprobs
        self._is_new, self._token_ids, self._logprobs = False, [], None
        self._num_taken += len(token_ids)
        return StreamDelta(
            token_ids,
            self.finish_reason,
            self.num_cached_tokens,
            self.num_output_tokens,
            self._error,
            logprobs,
            prompt_logprobs,
        )

    def _cut(self) -> tuple[list[int], list[TokenLogprobs] | None]:
        """Take as many tokens as one delta may bring, with their log-probabilities."""
        num = MAX_DELTA_TOKENS
        token_ids, self._token_ids = self._token_ids[:num], self._token_ids[num:]
        self._num_taken += num
        if self._logprobs is None:
            return token_ids, None
        logprobs, self._logprobs = self._logprobs[:num], self._logprobs[num:]
        return token_ids, logprobs
