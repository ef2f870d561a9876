"""What is asked of a simulated server: who sends how long a request, and when.

A trace knows how long each answer was, and here a request asks for just that many tokens. With
`max_tokens` set it asks for more and its model ends it at the true length, so that whoever
schedules has to predict it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from engine.contract import SamplingParams
from scheduler.request import Band, Request, Slo

_FILLER = array("i", [0])
# Room for the ids of requests below those of shared blocks.
FIRST_BLOCK_TOKEN = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Describe one request: when it comes, in seconds, from whom, how long it and its answer are.

    `block_ids` name the content of the prompt in blocks of `block_tokens` tokens: equal ids at
    the start of two prompts are a shared prefix. What is beyond them is the prompt's own: no
    other one goes on alike. `salt` is whose cache that is, the tenant's where it is empty.
    `ttlt_s` is a promise for the last token, which is measured but has no place in an `Slo`; of the
    batch band it is the window.
    Nobody waits for the first token longer than `patience_s`. Its caller cancels it
    `cancel_after_s` after it came, or once it has `cancel_after_tokens` tokens.
    """

    at_s: float
    tenant_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    organisation_id: str = ""
    key_id: str = ""
    weight: float = 1.0
    band: Band = Band.DEFAULT
    slo: Slo = field(default_factory=Slo)
    ttlt_s: float | None = None
    patience_s: float | None = None
    cancel_after_s: float | None = None
    cancel_after_tokens: int | None = None
    max_tokens: int | None = None
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 512
    salt: bytes = b""

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def at(self, time_s: float) -> Arrival:
        """Describe the same request, come at another time."""
        return replace(self, at_s=time_s)

    def request(self, index: int) -> Request:
        """Make the request; `index` tells it from all others of the workload."""
        num_tokens = self.max_tokens or self.num_output_tokens
        return Request(
            request_id=str(index),
            tenant_id=self.tenant_id,
            key_id=self.key_id or self.tenant_id,
            prompt_token_ids=self._prompt(index),
            params=SamplingParams(
                max_tokens=max(num_tokens, self.num_output_tokens),
                seed=index,
                ignore_eos=self.max_tokens is None,
            ),
            cache_salt=self.salt or self.tenant_id.encode(),
            arrival_s=self.at_s,
            weight=self.weight,
            organisation_id=self.organisation_id,
            band=self.band,
            slo=self.slo,
            expires_s=None if self.patience_s is None else self.at_s + self.patience_s,
            finish_by_s=self._finish_by_s,
        )

    @property
    def _finish_by_s(self) -> float | None:
        if self.band is not Band.BATCH or self.ttlt_s is None:
            return None
        return self.at_s + self.ttlt_s

    def uncut(self) -> Arrival:
        """Describe the same request of a caller that waits for all of the answer."""
        return replace(self, patience_s=None, cancel_after_s=None, cancel_after_tokens=None)

    def _prompt(self, index: int) -> array[int]:
        prompt = array("i")
        for block_id in self.block_ids:
            prompt += array("i", [FIRST_BLOCK_TOKEN + block_id]) * self.block_tokens
        num_own = self.num_prompt_tokens - len(prompt)
        if num_own > 0:
            # Names of blocks cover all that is before them: one token tells prompts apart.
            prompt += array("i", [index + 1]) + _FILLER * (num_own - 1)
        return prompt[: self.num_prompt_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Hold arrivals in the order of their times, over `duration_s` seconds.

    `backlog` goes on for ever: so many of its requests as `backlog_depth` are kept in the system
    until the arrivals are over. `has_times` is false where the times are not the trace's own.
    """

    name: str
    arrivals: Sequence[Arrival]
    duration_s: float
    backlog: Iterator[Arrival] | None = None
    backlog_depth: int = 0
    has_times: bool = True

    @property
    def num_tokens(self) -> int:
        return sum(arrival.num_tokens for arrival in self.arrivals)

    @property
    def offered_tokens_per_s(self) -> float:
        return self.num_tokens / self.duration_s if self.duration_s > 0 else 0.0

    def first(self, num_requests: int) -> Workload:
        """Keep the first requests and the time up to the last of them."""
        if num_requests >= len(self.arrivals):
            return self
        kept = self.arrivals[:num_requests]
        return replace(self, arrivals=kept, duration_s=max(kept[-1].at_s, 1e-9))

    def faster(self, factor: float) -> Workload:
        """Let the same requests come `factor` times as fast."""
        return replace(
            self,
            arrivals=[replace(a, at_s=a.at_s / factor) for a in self.arrivals],
            duration_s=self.duration_s / factor,
        )

    def all_at_once(self, num_requests: int) -> Workload:
        """Keep `num_requests` of them, evenly chosen, and let all come at the start."""
        step = max(1.0, len(self.arrivals) / num_requests)
        chosen = [self.arrivals[int(i * step)] for i in range(int(len(self.arrivals) / step))]
        return replace(self, arrivals=[replace(a, at_s=0.0) for a in chosen], duration_s=0.0)
