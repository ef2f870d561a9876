"""A fake of the scheduler's service that does what a test says."""

from __future__ import annotations

import asyncio

from engine.contract import TokenLogprobs
from scheduler.errors import Rejected
from scheduler.request import FinishReason, Request, RequestOutput, Sender
from scheduler.stream import TokenStream


class ScriptedService:
    """Refuse every request with `refusal`, or give it the steps of `script`, one after another.

    A script is a list of new tokens and finish reasons.
    """

    stopping = False

    def __init__(self) -> None:
        self.refusal: Rejected | None = None
        self.script: list[tuple[tuple[int, ...], FinishReason | None]] = [((), FinishReason.STOP)]
        self.requests: list[Request] = []

    def submit(self, request: Request) -> TokenStream:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        stream = TokenStream(request.request_id, lambda request_id: None)
        task = asyncio.create_task(self._play(stream, request.params.logprobs is not None))
        task.add_done_callback(lambda done: done.result())
        return stream

    def check_room(self, sender: Sender, num_requests: int, num_prompt_tokens: int) -> None:
        pass

    def extend(self, request_id: str, granted_tokens: int | None) -> None:
        pass

    def finish_granted(self, request_id: str) -> None:
        pass

    async def _play(self, stream: TokenStream, is_scored: bool) -> None:
        num_tokens = 0
        for token_ids, reason in self.script:
            num_tokens += len(token_ids)
            scores = tuple(TokenLogprobs(token_id, -0.5, 1) for token_id in token_ids)
            output = RequestOutput(stream.request_id, token_ids, reason, 0, num_tokens)
            stream.push(output._replace(logprobs=scores) if is_scored else output)
            # Until its reader has taken the step and waits for more.
            for _ in range(10):
                await asyncio.sleep(0)
