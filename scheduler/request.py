"""What a caller hands to the scheduler and gets back: data alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from engine.contract import SamplingParams, TokenLogprobs
from scheduler.facts import RequestFacts


class Band(IntEnum):
    """Rank requests: a lower number goes first.

    Nobody asks for `DUE`: it is what the batch band's work is moved to as its window nears its end.
    """

    PRIORITY = 0
    DEFAULT = 1
    FLEX = 2
    DUE = 3
    BATCH = 4


# Those that may be asked for, by name.
BANDS = {band.name.lower(): band for band in Band if band is not Band.DUE}


# Whether it is an organisation, and its id.
Member = tuple[bool, str]


@dataclass(frozen=True, slots=True)
class Slo:
    """Promise a time to the first token and a time for each token after it, in seconds.

    The promise per token is cumulative: token k is due `k * tpot_s` after the first one was, so
    tokens that come early buy time for later ones. `max_gap_s` bounds each single gap besides.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    max_gap_s: float | None = None

    @property
    def is_paced(self) -> bool:
        """Tell whether tokens after the first one are promised as well."""
        return self.tpot_s is not None or self.max_gap_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask for the continuation of a prompt on behalf of a tenant.

    `weight` is the tenant's share beside the others of its organisation, and
    `organisation_weight` that of the organisation beside others. A tenant whose `organisation_id`
    is empty belongs to none and stands beside organisations with its own weight.
    `request_id` is unique among live requests. `cache_salt` roots its prefix cache: requests
    share KV only within a salt. `granted_tokens` is how many output tokens the caller has
    reserved; the request pauses there until `Scheduler.extend` or `finish_granted` answers, and
    None is without bound. `arrival_s` is on the scheduler's clock. Nobody waits for the first
    token beyond `expires_s`, where it is given. `finish_by_s` is the end of the window in
    which work of the batch band is to be done; what has not begun by then is not begun any more.
    """

    request_id: str
    tenant_id: str
    key_id: str
    prompt_token_ids: array[int]
    params: SamplingParams
    cache_salt: bytes
    arrival_s: float
    weight: float = 1.0
    organisation_id: str = ""
    organisation_weight: float = 1.0
    band: Band = Band.DEFAULT
    slo: Slo = field(default_factory=Slo)
    granted_tokens: int | None = None
    expires_s: float | None = None
    finish_by_s: float | None = None

    @property
    def member(self) -> Member:
        """Name who shares its band with others: its organisation, or a tenant of none."""
        return bool(self.organisation_id), self.organisation_id or self.tenant_id

    @property
    def member_weight(self) -> float:
        """Say what that one's share is."""
        return self.organisation_weight if self.organisation_id else self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Name who would send a request, and in which band, as `Request` does."""

    tenant_id: str
    weight: float = 1.0
    organisation_id: str = ""
    organisation_weight: float = 1.0
    band: Band = Band.DEFAULT


class FinishReason(StrEnum):
    """Say why a request ended: an end token, a bound on tokens, its caller, a fault, or the time.

    `UNMET` is one that asked for what cannot be: no token was left that its constraint allows.
    `EXPIRED` is work that nobody would have been served by any more when its turn came.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    UNMET = "unmet"
    EXPIRED = "expired"


class RequestOutput(NamedTuple):
    """Report what one step, or one command, did for a request.

    `token_ids` are new in this step; an end token is not among them, but `num_output_tokens`,
    which is cumulative, counts it. `num_cached_tokens` of the prompt came from the prefix cache.
    `error` is for logs, never for the caller.

    `logprobs` go with `token_ids`, where they were asked for; that of an end token follows them.
    `prompt_logprobs` come once and whole, with the first token or before it: one for each token of
    the prompt, None for the first.

    The last output says how much was done of the prompt: `num_prefilled_tokens` of it were computed
    or found in the prefix cache, each counted once, all of them if a token was drawn. What was
    launched is computed. What a fault took is not counted, and what a preemption took only once.
    It has the `facts` besides, where the scheduler has not failed, and what was `pooled` of a
    prompt, where that is all that the engine does.

    A named tuple, since there is one for each row of each step, and a frozen dataclass takes
    three times as long to make.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    num_cached_tokens: int
    num_output_tokens: int
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    num_prefilled_tokens: int = 0
    facts: RequestFacts | None = None
    pooled: Sequence[float] | None = None


class RejectCode(StrEnum):
    """Say what kind of refusal it is: the request's size, the tenant's share, our load or state."""

    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    TENANT_LIMITED = "rate_limit_exceeded"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Admit:
    """Say that a request was taken in, behind `num_ahead` that also wait.

    Where it is not `is_promised`, its prompt alone takes longer than the time to the first token
    that it was promised: it is served as if none had been.
    """

    num_ahead: int
    is_promised: bool = True


@dataclass(frozen=True, slots=True)
class Reject:
    """Say why a request was refused; `reason` is fit for its caller.

    `cause` is one word for what it was for, to be counted by.
    """

    reason: str
    code: RejectCode
    retry_after_s: float | None = None
    cause: str = ""
