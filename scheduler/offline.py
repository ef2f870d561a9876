"""Generation over a list of prompts in one process, for evaluation and bulk work.

    from scheduler.offline import LLM

    with LLM("./Llama-3.2-1B-Instruct") as llm:
        for completion in llm.generate(["The capital of France is"]):
            print(completion.text)

The same scheduler and engine as in the server, driven on the caller's thread: continuous
batching, chunked prefill and the prefix cache all work, and the cache lives as long as the `LLM`.
It knows no tenants. torch is imported when an `LLM` is made, not with this module.

Failures: a prompt that cannot be served raises before anything is computed, and names the prompt
by its index. A row that the engine gives up on ends with `FinishReason.ERROR` and harms no other.
An exception out of the engine, or an interrupt, ends the call; the `LLM` can be used again.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Literal

from engine.config import EngineConfig
from engine.contract import EngineInfo, SamplingParams, TokenLogprobs
from engine.errors import ChatTemplateError
from engine.generation_config import SamplingDefaults, read_sampling_defaults
from engine.open import open_engine
from engine.text import ChatTemplate, Detokenizer, InvalidText, StopStrings, Tokenizer
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.errors import Rejected
from scheduler.inline import InlineLoop
from scheduler.progress import Progress
from scheduler.request import FinishReason, Reject, Request, RequestOutput

# A text; token ids; or a chat, as messages with `role` and `content`.
Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]

# Where no length is asked for: that of vLLM's `LLM.generate` and of OpenAI's completions.
DEFAULT_PARAMS = SamplingParams(max_tokens=16)

_SALT = b"offline"
_OWNER = "offline"


@dataclass(frozen=True, slots=True)
class Completion:
    """Hold what one prompt was continued with.

    `token_ids` are all that were drawn, but for an end token, which `num_output_tokens` counts
    too; `text` ends before a stop string. `num_cached_tokens` of the prompt were found computed.
    Where the parameters ask for them, `logprobs` go with `token_ids` (that of an end token follows
    them) and `prompt_logprobs` with the prompt's tokens (None for the first). `error` says what
    went wrong where `finish_reason` is ERROR.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    error: str | None = None


class LLM:
    """Generate with one model, on the caller's thread; close it, or use it as a context manager.

    Args: `model`: a Hugging Face directory, or an `EngineConfig` to choose device, dtype, threads
        and memory as well. `prefix_caching`: share the KV of equal beginnings of prompts.
        `generation_config`: `auto`, or `none` of the sampling that the model's makers recommend.
    Raises: `EngineError`: the model cannot be served, in one line.
    """

    def __init__(
        self,
        model: Path | str | EngineConfig,
        *,
        prefix_caching: bool = True,
        generation_config: Literal["auto", "none"] = "auto",
    ) -> None:
        config = model if isinstance(model, EngineConfig) else EngineConfig(model_dir=Path(model))
        self._model_dir = config.model_dir
        self._tokenizer = Tokenizer.from_dir(config.model_dir)
        self._chat_template = ChatTemplate.from_dir(config.model_dir)
        defaults = SamplingDefaults()
        if generation_config == "auto":
            defaults = read_sampling_defaults(config.model_dir)
        self._engine = open_engine(config)
        self._defaults = defaults.fitted(self._engine.info)
        self._scheduler = Scheduler(
            self._engine.info,
            # All prompts of a call wait here at once.
            first_come(prefix_caching=prefix_caching, max_num_queued=1 << 62),
        )
        self._loop = InlineLoop(self._scheduler, self._engine, time.monotonic)
        self._num_requests = 0
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def default_params(self) -> SamplingParams:
        """Return what `generate` draws with unless told: the model's own, or 16 plain tokens."""
        return self._defaults.params(DEFAULT_PARAMS.max_tokens)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: str | Sequence[str] = (),
        progress: bool = True,
    ) -> list[Completion]:
        """Continue every prompt, in one go.

        A prompt is a text, token ids, also those of numpy, or a chat's messages, which the model's
        template renders.
        Args: `params`: for all prompts, or one for each; None is `default_params`.
            `stop`: strings that end a text, behind `min_tokens`. `progress`: show a bar on stderr.
        Returns: the completions in the order of the prompts.
        Raises: `Rejected`, `InvalidText`, `ChatTemplateError`, `ValueError`: a prompt or its
            parameters cannot be served; the message names it by its index.
        """
        assert not self._closed, "an LLM that was closed generates nothing"
        if isinstance(prompts, str):
            raise ValueError("prompts is a text: pass a list of prompts")
        prompts = list(prompts)
        params = self.default_params if params is None else params
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(each)} params for {len(prompts)} prompts: pass one or as many")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        for index, row_params in enumerate(each):
            _check_params(index, row_params)
        pending = [
            _Pending(
                self._tokenise(index, prompt), self._tokenizer.detokenizer(), stops, row.min_tokens
            )
            for index, (prompt, row) in enumerate(zip(prompts, each, strict=True))
        ]
        live: dict[str, _Pending] = {}
        try:
            for index, (row, row_params) in enumerate(zip(pending, each, strict=True)):
                live[self._offer(index, row, row_params)] = row
            with Progress(len(pending), label="prompts", enabled=progress) as bar:
                self._run(live, bar)
        finally:
            # An interrupt leaves nothing behind that a later call would compute.
            for request_id in live:
                self._scheduler.cancel(request_id, time.monotonic())
        return [row.completion() for row in pending]

    def close(self) -> None:
        """Give back the memory of the engine; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _tokenise(self, index: int, prompt: Prompt) -> array[int]:
        if not _is_prompt(prompt):
            raise ValueError(f"prompt {index} is no text, no token ids and no messages of a chat")
        try:
            token_ids = self._encode(prompt)
        except (InvalidText, ChatTemplateError) as error:
            raise type(error)(f"prompt {index}: {error}") from None
        if not token_ids:
            raise ValueError(f"prompt {index} is empty")
        vocab_size = self._engine.info.vocab_size
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"prompt {index}: token id {token_id} is outside the vocabulary of {vocab_size}"
                )
        return token_ids

    def _encode(self, prompt: Prompt) -> array[int]:
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if not messages:
            # No model has as many tokens as would overflow this array.
            ids = (int(item) for item in prompt if not isinstance(item, Mapping))
            return array("i", (max(-1, min(one, (1 << 31) - 1)) for one in ids))
        if self._chat_template is None:
            raise ChatTemplateError(f"{self._model_dir} has no chat template; pass texts")
        text = self._chat_template.render(messages)
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _offer(self, index: int, row: _Pending, params: SamplingParams) -> str:
        request_id = str(self._num_requests)
        self._num_requests += 1
        now = time.monotonic()
        request = Request(
            request_id=request_id,
            tenant_id=_OWNER,
            key_id=_OWNER,
            prompt_token_ids=row.prompt,
            params=params,
            cache_salt=_SALT,
            arrival_s=now,
        )
        answer = self._scheduler.offer(request, now)
        if isinstance(answer, Reject):
            raise Rejected(
                f"prompt {index}: {answer.reason}",
                code=answer.code,
                retry_after_s=answer.retry_after_s,
            )
        return request_id

    def _run(self, live: dict[str, _Pending], bar: Progress) -> None:
        """Step until all of `live` have ended; they are taken out as they do."""
        while live:
            num_ended, num_tokens = 0, 0
            for output in self._loop.turn():
                row = live[output.request_id]
                num_tokens += len(output.token_ids)
                row.push(output)
                if row.finish_reason is None:
                    continue
                del live[output.request_id]
                num_ended += 1
                if output.finish_reason is None:  # a stop string, which the scheduler knows not
                    self._scheduler.cancel(output.request_id, time.monotonic())
            bar.advance(num_ended, amount=num_tokens)


class _Pending:
    """Turn the outputs of one request into its completion."""

    def __init__(
        self, prompt: array[int], detokenizer: Detokenizer, stop: tuple[str, ...], min_tokens: int
    ) -> None:
        self.prompt = prompt
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._stops = StopStrings(stop)
        self._min_tokens = min_tokens
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None
        self._prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
        self._last: RequestOutput | None = None

    def push(self, output: RequestOutput) -> None:
        self._last = output
        self._token_ids += output.token_ids
        if output.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        # As the server has it: none is looked for before the last of `min_tokens`.
        num_early = max(0, self._min_tokens - 1 - len(self._token_ids) + len(output.token_ids))
        self._pieces.append(self._detokenizer.push(output.token_ids[:num_early]))
        if self._write(self._detokenizer.push(output.token_ids[num_early:])):
            return
        if output.finish_reason is None:
            return
        if not self._write(self._detokenizer.finish()):
            self._pieces.append(self._stops.finish())
            self.finish_reason = output.finish_reason

    def completion(self) -> Completion:
        assert self._last is not None, "a request ends with an output"
        assert self.finish_reason is not None, "and with a reason"
        return Completion(
            text="".join(self._pieces),
            token_ids=tuple(self._token_ids),
            finish_reason=self.finish_reason,
            num_prompt_tokens=len(self.prompt),
            num_cached_tokens=self._last.num_cached_tokens,
            num_output_tokens=self._last.num_output_tokens,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            prompt_logprobs=self._prompt_logprobs,
            error=self._last.error,
        )

    def _write(self, text: str) -> bool:
        """Add text, and tell whether a stop string has ended it."""
        piece, stopped = self._stops.push(text)
        self._pieces.append(piece)
        if stopped:
            self.finish_reason = FinishReason.STOP
        return stopped


def _is_prompt(prompt: object) -> bool:
    """Tell a text, token ids of any kind, or messages from what is none, and from a mixture."""
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | Mapping):
        return False
    kinds = set(map(type, prompt))
    return any(all(issubclass(kind, of) for kind in kinds) for of in (Integral, Mapping))


def _check_params(index: int, params: SamplingParams) -> None:
    """Refuse what no engine could follow; the gateway does the same for its clients."""
    bounds = {
        "max_tokens": params.max_tokens >= 1,
        "temperature": 0 <= params.temperature < float("inf"),
        "top_k": params.top_k >= 0,
        "top_p": 0 < params.top_p <= 1,
        "min_p": 0 <= params.min_p <= 1,
        "seed": 0 <= params.seed < 1 << 64,
        "min_tokens": 0 <= params.min_tokens <= params.max_tokens,
        "repetition_penalty": 0 < params.repetition_penalty < float("inf"),
        "logprobs": params.logprobs is None or params.logprobs >= 0,
        "prompt_logprobs": params.prompt_logprobs is None or params.prompt_logprobs >= 0,
    }
    for name, is_good in bounds.items():
        if not is_good:
            raise ValueError(f"prompt {index}: {name} {getattr(params, name)!r} is out of bounds")
