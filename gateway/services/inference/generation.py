"""One running request, read as text.

Tokens become text incrementally; stop strings are cut across token borders; log-probabilities
stay with their tokens. Where the result could depend on how many tokens a slow reader finds at
once (a stop string in the middle of them), tokens are taken one by one, so that text, usage and
log-probabilities are the same however the stream is read.

Whoever holds a `Generation` must call `close`, on every path; closing is synchronous,
idempotent and needs no cancellation shield.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.contract import TokenLogprobs
from engine.text import Detokenizer, StopStrings
from gateway.errors import (
    ConstraintUnmet,
    GatewayError,
    InternalFailure,
    Overloaded,
    ServerDraining,
)
from gateway.services.answers import AnswerReader, Event, merged
from scheduler.facts import RequestFacts
from scheduler.request import FinishReason
from scheduler.stream import StreamDelta, TokenStream

# It was taken in when it looked as if it could be served; by now it looks better or is refused.
_EXPIRED_RETRY_S = 1.0


class Computing(Protocol):
    """Read what is made of a request, piece by piece; `Generation` says what each part is."""

    on_output: Callable[[int, bool], None] | None
    on_text: Callable[[str], None] | None

    @property
    def is_read(self) -> bool: ...
    @property
    def stop_string(self) -> str | None: ...
    @property
    def num_reasoning_tokens(self) -> int: ...
    @property
    def echo(self) -> Echo | None: ...
    @property
    def ended_by(self) -> str | None: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_used_tokens(self) -> int: ...
    @property
    def num_prefilled_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def facts(self) -> RequestFacts | None: ...
    @property
    def is_promised(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def has_failed(self) -> bool: ...
    async def next(self) -> Piece: ...
    def close(self) -> None: ...
    def extend(self, granted_tokens: int) -> None: ...
    def finish_granted(self) -> None: ...
    def fail(self, error: GatewayError) -> None: ...


@dataclass(frozen=True, slots=True)
class Echo:
    """Hold a prompt that is to be repeated in front of its completion."""

    text: str
    token_ids: Sequence[int]


class Piece(NamedTuple):
    """Carry new text, and with the last piece why the generation ended (`stop`, `length`).

    `vectors` are what was made of inputs, in their order, where there is no text. `logprobs` are
    those of this piece's tokens, `end_logprobs` that of the end token, which is
    no part of the text. `prompt_logprobs` come once, with the first piece: an entry a prompt
    token, the first of them None. `events` say what the text is, where it is read for thinking or
    for calls, the last piece's with their `Finish`.
    """

    text: str
    finish_reason: str | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    end_logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    events: Sequence[Event] = ()
    vectors: Sequence[Sequence[float]] = ()

    @property
    def ended_by(self) -> str:
        """Return the finish reason of a last piece."""
        assert self.finish_reason is not None, "more is to come"
        return self.finish_reason


class RunsRequests(Protocol):
    """Compute requests; `scheduler.service.EngineService` does."""

    @property
    def stopping(self) -> bool: ...
    def extend(self, request_id: str, granted_tokens: int | None) -> None: ...
    def finish_granted(self, request_id: str) -> None: ...


class Generation:
    """Read one request's text as it is computed.

    Attributes: `num_prompt_tokens`; `echo`, None unless asked for; `num_output_tokens`, growing
    while it is read; and `ended_by`, the finish reason once its last piece was read. `on_output` is
    told of the tokens as they grow in number, and whether that was the last of them; `on_text` of
    the text.
    """

    def __init__(
        self,
        service: RunsRequests,
        stream: TokenStream,
        detokenizer: Detokenizer,
        stop: Sequence[str],
        *,
        num_prompt_tokens: int,
        min_tokens: int = 0,
        echo: Echo | None = None,
        waits_for_prompt_logprobs: bool = False,
        is_prompt_alone: bool = False,
        reader: AnswerReader | None = None,
    ) -> None:
        self._reader = reader
        self._events: list[Event] = []
        self._service = service
        self._stream = stream
        self._detokenizer = detokenizer
        # With calls in it not all is text: what is, the reader knows.
        self._stops = StopStrings(() if reader is not None and reader.reads_calls else stop)
        self._has_stops = bool(stop)
        self._min_tokens = min_tokens
        self._waits_for_prompt_logprobs = waits_for_prompt_logprobs
        self._is_prompt_alone = is_prompt_alone
        self._prefix = echo.text if echo else ""
        self.echo = echo
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = 0
        self.ended_by: str | None = None
        self.on_output: Callable[[int, bool], None] | None = None
        self.on_text: Callable[[str], None] | None = None
        self._failure: GatewayError | None = None
        self._is_cut_off = True

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended its text; None where none did."""
        read = None if self._reader is None else self._reader.stop_string
        return read or self._stops.met

    @property
    def is_promised(self) -> bool:
        """Tell whether its tenant's promise holds for its prompt, which may be too long for it."""
        return self._stream.is_promised

    @property
    def num_cached_tokens(self) -> int:
        """Count the tokens of the prompt that were found in the prefix cache."""
        return self._stream.num_cached_tokens

    @property
    def num_prefilled_tokens(self) -> int:
        """Count the tokens of the prompt that were computed or found: all with the first token.

        Before that it is 0 until the end, which says how far the prompt has come.
        """
        if self._stream.num_output_tokens:
            return self.num_prompt_tokens
        return self._stream.num_prefilled_tokens

    @property
    def facts(self) -> RequestFacts | None:
        """Return what the scheduler says became of it; None until it is over."""
        return self._stream.facts

    @property
    def is_over(self) -> bool:
        """Tell whether the scheduler has ended it."""
        return self._stream.finish_reason is not None

    @property
    def has_failed(self) -> bool:
        """Tell whether the engine failed it, rather than somebody ended it."""
        return self._stream.finish_reason is FinishReason.ERROR and not self._service.stopping

    @property
    def is_read(self) -> bool:
        """Tell whether pieces say what they are by events."""
        return self._reader is not None

    @property
    def num_reasoning_tokens(self) -> int:
        """Count the output tokens that were thinking, as far as it was read."""
        return 0 if self._reader is None else self._reader.num_reasoning_tokens

    @property
    def num_used_tokens(self) -> int:
        """Count the output tokens to pay for: what was answered, or drawn before it was cut off."""
        if self._is_cut_off:
            return max(self._stream.num_output_tokens, self.num_output_tokens)
        return self.num_output_tokens

    async def next(self) -> Piece:
        """Wait for more text.

        Raises: `InternalFailure` if the engine failed the request, `ConstraintUnmet` if nothing was
        left that its constraint allows, `Overloaded` if it was ended
        because its time passed in the queue, `ServerDraining` if the server stops; what `fail`
        was given.
        """
        delta = await self._stream.next()
        while self._waits_for_prompt_logprobs and _is_incomplete(delta):
            delta = await self._stream.next()
        if self._is_prompt_alone:
            delta = _without_output(delta)
        if self.on_output is not None:
            self.on_output(delta.num_output_tokens, delta.finish_reason is not None)
        if self._failure is not None:
            raise self._failure
        check_end(delta, self._service)
        is_plain = not self._has_stops and self._reader is None
        piece = self._plain(delta) if is_plain else self._token_by_token(delta)
        if self.on_text is not None:
            self.on_text(piece.text)
        if piece.finish_reason is not None:
            self.ended_by = piece.finish_reason
            if piece.finish_reason != FinishReason.CANCELLED:
                self._is_cut_off = False
        if self._reader is not None:
            piece = piece._replace(events=self._told(self._reader, piece.finish_reason))
        if not self._prefix and not self._waits_for_prompt_logprobs:
            return piece
        prefix, self._prefix = self._prefix, ""
        self._waits_for_prompt_logprobs = False
        return piece._replace(text=prefix + piece.text, prompt_logprobs=delta.prompt_logprobs or ())

    def close(self) -> None:
        """Give back the slot and the KV blocks, within one step; a second call does nothing."""
        self._stream.cancel()

    def extend(self, granted_tokens: int) -> None:
        """Let it draw up to so many output tokens in all."""
        self._service.extend(self._stream.request_id, granted_tokens)

    def finish_granted(self) -> None:
        """Let it end with `length` where its grant does."""
        self._service.finish_granted(self._stream.request_id)

    def fail(self, error: GatewayError) -> None:
        """End it; whoever reads meets `error`."""
        self._failure = error
        self.close()

    def _plain(self, delta: StreamDelta) -> Piece:
        """Take all tokens of a delta at once."""
        self.num_output_tokens = delta.num_output_tokens
        text = self._detokenizer.push(delta.token_ids)
        if delta.finish_reason is None:
            return Piece(text, None, delta.logprobs or ())
        return self._last(text + self._detokenizer.finish(), delta.finish_reason, delta)

    def _token_by_token(self, delta: StreamDelta) -> Piece:
        """Take a delta's tokens one by one, and end where a stop string or the only call is."""
        logprobs = delta.logprobs or ()
        text: list[str] = []
        for index, token_id in enumerate(delta.token_ids):
            self.num_output_tokens += 1
            new = self._detokenizer.push((token_id,))
            is_early = self.num_output_tokens < self._min_tokens
            emitted, stopped = (new, False) if is_early else self._stops.push(new)
            text.append(emitted)
            if self._reader is not None:
                self._events += self._reader.push(emitted, may_stop=not is_early)
                stopped = stopped or (self._reader.is_done and not is_early)
            if stopped:
                self.close()
                return Piece("".join(text), FinishReason.STOP.value, logprobs[: index + 1])
        if delta.finish_reason is None:
            return Piece("".join(text), None, logprobs)
        # An end token counts although it is no part of the text.
        self.num_output_tokens = delta.num_output_tokens
        tail, stopped = self._stops.push(self._detokenizer.finish())
        text.append(tail if stopped else tail + self._stops.finish())
        if self._reader is not None:
            self._events += self._reader.push(text[-1], is_token=False)
            self._events += self._reader.close()
            stopped = stopped or self._reader.stop_string is not None
        reason = FinishReason.STOP if stopped else delta.finish_reason
        return self._last("".join(text), reason, delta)

    def _told(self, reader: AnswerReader, reason: str | None) -> Sequence[Event]:
        """Return what was read since it was last asked."""
        events, self._events = self._events, []
        if reason is not None:
            events += reader.finish(reason)
        return merged(events)

    @staticmethod
    def _last(text: str, reason: FinishReason, delta: StreamDelta) -> Piece:
        logprobs, num_tokens = delta.logprobs or (), len(delta.token_ids)
        return Piece(text, reason.value, logprobs[:num_tokens], logprobs[num_tokens:])


def check_end(delta: StreamDelta, service: RunsRequests) -> None:
    """Raise where a request ended that nobody ended: as `Generation.next` says."""
    if delta.finish_reason is FinishReason.EXPIRED:
        raise Overloaded(
            "The request's time passed while it waited for its turn.",
            retry_after_s=_EXPIRED_RETRY_S,
        )
    if delta.finish_reason is FinishReason.UNMET:
        raise ConstraintUnmet(detail=delta.error)
    if delta.finish_reason is FinishReason.ERROR:
        if service.stopping:
            raise ServerDraining(retry_after_s=1)
        raise InternalFailure("The engine failed while computing this request.", detail=delta.error)


def _without_output(delta: StreamDelta) -> StreamDelta:
    """Drop the token that shows that a prompt was computed, also from what is billed."""
    is_over = delta.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    reason = FinishReason.LENGTH if is_over else delta.finish_reason
    return delta._replace(token_ids=[], logprobs=None, num_output_tokens=0, finish_reason=reason)


def _is_incomplete(delta: StreamDelta) -> bool:
    """Tell whether a prompt's log-probabilities are still to come, and its first token too."""
    return delta.prompt_logprobs is None and not delta.token_ids and delta.finish_reason is None
