"""A list of inputs on its way to vectors: some at a time in the scheduler, read in order.

A list may have two thousand inputs. All at once in the scheduler they would be the whole queue, so
`WINDOW` of them are: as one ends, the next goes in, and waits like any request of its tenant, for
its turn on the event loop too: between two a list holds nothing that others need. One that is
refused for want of room is tried again when another of the list has ended, or after a moment; it is
the request's refusal where it was the first, or where none gets in for `PATIENCE_S`.

Nothing is drawn, so nothing is granted: an input is charged as it is computed, and what of a list
has been computed when it ends early is all that is charged.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from engine.contract import SamplingParams
from gateway.errors import GatewayError, Overloaded, TenantLimited
from gateway.services import loop_share
from gateway.services.inference.embedding_inputs import PreparedEmbedding
from gateway.services.inference.generation import Echo, Piece, RunsRequests, check_end
from scheduler.facts import RequestFacts
from scheduler.request import FinishReason
from scheduler.stream import TokenStream

WINDOW: Final = 64
PATIENCE_S: Final = 30.0
_RETRY_S: Final = 0.05
# The token that a request asks for stands for its vector: it is never drawn.
_PARAMS: Final = SamplingParams(max_tokens=1, temperature=0.0)


class HandOver(Protocol):
    """Hand an input to the scheduler. Raises: why it is not taken in."""

    def __call__(
        self,
        request_id: str,
        prompt: array[int],
        params: SamplingParams,
        granted_tokens: int | None,
        /,
    ) -> TokenStream: ...


class Embedding:
    """Read the vectors of a job, each as a piece; implements `Computing`."""

    def __init__(
        self, service: RunsRequests, hand_over: HandOver, prepared: PreparedEmbedding
    ) -> None:
        """Hand over the first input. Raises: what `hand_over` does."""
        self._service = service
        self._hand_over = hand_over
        self._request_id = prepared.job.request_id
        self._waiting = deque(enumerate(prepared.prompts))
        self._running: deque[TokenStream] = deque()
        self._num_prefilled = self._num_cached = 0
        self._facts: RequestFacts | None = None
        self._failure: GatewayError | None = None
        self._has_failed = self._is_closed = False
        self.num_prompt_tokens = prepared.num_tokens
        self.num_output_tokens = self.num_used_tokens = 0
        self.is_promised = True
        self.ended_by: str | None = None
        self.echo: Echo | None = None
        self.on_output: Callable[[int, bool], None] | None = None
        # Of text, which it has none of.
        self.on_text: Callable[[str], None] | None = None
        self.is_read, self.num_reasoning_tokens = False, 0
        self.stop_string: str | None = None
        self._begin()

    @property
    def num_prefilled_tokens(self) -> int:
        """Count the tokens that were computed or found, of inputs that are over."""
        return self._num_prefilled + sum(one.num_prefilled_tokens for one in self._running)

    @property
    def num_cached_tokens(self) -> int:
        """Count those of them that were found in the prefix cache."""
        ended = (one for one in self._running if one.finish_reason is not None)
        return self._num_cached + sum(one.num_cached_tokens for one in ended)

    @property
    def facts(self) -> RequestFacts | None:
        """Return what became of all inputs as if they were one prompt; None until they are over."""
        return self._facts if self.is_over else None

    @property
    def is_over(self) -> bool:
        return not self._waiting and all(one.finish_reason is not None for one in self._running)

    @property
    def has_failed(self) -> bool:
        ended_so = any(one.finish_reason is FinishReason.ERROR for one in self._running)
        return (self._has_failed or ended_so) and not self._service.stopping

    async def next(self) -> Piece:
        """Wait for the next input's vector. Raises: as `Generation.next`; what refuses an input."""
        await self._fill()
        if not self._running:
            return self._cancelled()
        stream = self._running[0]
        delta = await stream.next()
        while delta.finish_reason is None:
            delta = await stream.next()
        if self._failure is not None:
            raise self._failure
        if self._is_closed or delta.finish_reason is FinishReason.CANCELLED:
            return self._cancelled()
        self._running.popleft()
        self._note(stream)
        is_last = not self._running and not self._waiting
        if self.on_output is not None:
            self.on_output(0, is_last)
        self._has_failed = delta.finish_reason is FinishReason.ERROR
        check_end(delta, self._service)
        assert stream.pooled is not None, "what pools ends with its vector"
        if is_last:
            self.ended_by = FinishReason.STOP.value
        return Piece("", self.ended_by, vectors=(stream.pooled,))

    def close(self) -> None:
        """Give back what its inputs hold, within one step; a second call does nothing."""
        self._is_closed = True
        self._waiting.clear()
        for stream in self._running:
            stream.cancel()

    def extend(self, granted_tokens: int) -> None:
        """Do nothing: it draws no tokens."""

    def finish_granted(self) -> None:
        """Do nothing, likewise."""

    def fail(self, error: GatewayError) -> None:
        """End it; whoever reads meets `error`."""
        self._failure = error
        self.close()

    def _begin(self) -> None:
        """Hand over the next input."""
        index, prompt = self._waiting[0]
        stream = self._hand_over(f"{self._request_id}-{index}", prompt, _PARAMS, None)
        self._waiting.popleft()
        self._running.append(stream)
        self.is_promised = self.is_promised and stream.is_promised

    async def _fill(self) -> None:
        """Hand over what the window has room for, and let others have their turn in between."""
        began_s: float | None = None
        while self._waiting and len(self._running) < WINDOW:
            try:
                await loop_share.turn()
                if self._waiting:
                    self._begin()
            except (Overloaded, TenantLimited):
                if self._running:
                    return
                now_s = time.monotonic()
                began_s = now_s if began_s is None else began_s
                if self._service.stopping or now_s - began_s > PATIENCE_S:
                    raise
                await asyncio.sleep(_RETRY_S)
            else:
                began_s = None
                await asyncio.sleep(0)

    def _note(self, stream: TokenStream) -> None:
        """Keep what an input that is over has come to."""
        self._num_prefilled += stream.num_prefilled_tokens
        self._num_cached += stream.num_cached_tokens
        facts, before = stream.facts, self._facts
        if facts is None or before is None:
            self._facts = facts or before
            return
        self._facts = replace(
            before,
            ended_s=max(before.ended_s, facts.ended_s),
            num_chunks=before.num_chunks + facts.num_chunks,
            num_prefill_steps=before.num_prefill_steps + facts.num_prefill_steps,
            num_cached_tokens=before.num_cached_tokens + facts.num_cached_tokens,
            preemptions=(*before.preemptions, *facts.preemptions),
        )

    def _cancelled(self) -> Piece:
        if self._failure is not None:
            raise self._failure
        self.ended_by = FinishReason.CANCELLED.value
        return Piece("", self.ended_by)
