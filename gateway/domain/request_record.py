"""What is kept of a finished request for a day: how it went, and why it took as long as it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID


class Cause(StrEnum):
    """Say what took a request's time.

    `OWN_LIMIT`: a limit of its key or tenant refused it, or it paused until more was granted;
    `QUEUE`: it waited for a slot or for blocks; `LONG_PROMPT`: prompts of others filled the steps
    before it; `PREEMPTED`: it was sent back for others; `SHARED`: it sat out steps for others'
    shares; `SLOW_READER`: its client did not read; `SLOW_SENDER`: its client was long in sending
    it; `STORE`: a database or the counters did not
    answer, or late; `COMPUTE`: its own prompt and its own tokens; `GATEWAY`: what is left, as
    reading and tokenising it.
    """

    OWN_LIMIT = "own_limit"
    QUEUE = "queue"
    LONG_PROMPT = "long_prompt"
    PREEMPTED = "preempted"
    SHARED = "shared"
    SLOW_READER = "slow_reader"
    SLOW_SENDER = "slow_sender"
    STORE = "store"
    COMPUTE = "compute"
    GATEWAY = "gateway"


class Contribution(NamedTuple):
    """Say how many of a request's seconds one cause took."""

    cause: Cause
    seconds: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Say why a request took `total_s`; `contributions` add up to it, the largest first.

    `cause` is None where nothing of it was slow or held back: what it asked for was wrong.
    `sentence` is for whoever operates the server.
    """

    cause: Cause | None
    sentence: str
    total_s: float
    contributions: Sequence[Contribution]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Keep one request. `at` is when it began, `status` that of its answer's head, 0 without one.

    `details` is the timeline with its explanation, as the admin API shows it; a list lacks it.
    `limit` is the limit of its details, "" for none; it and `tenant`, its tenant's name, are there
    where a record was read.
    """

    request_id: UUID
    at: datetime
    organisation_id: UUID
    tenant_id: UUID
    key_id: UUID | None
    model: str
    tier: str
    status: int
    code: str
    outcome: str
    cause: Cause | None
    missed: tuple[str, ...]
    is_preempted: bool
    is_degraded: bool
    duration_s: float
    ttft_s: float | None
    output_tokens: int
    details: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    limit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Choose records; None does not choose. They began in `since <= at < until`."""

    tenant_id: UUID | None = None
    status: int | None = None
    cause: Cause | None = None
    has_missed: bool | None = None
    since: datetime | None = None
    until: datetime | None = None
