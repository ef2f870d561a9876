"""Requests that carry an `Idempotency-Key`: who answers one, and what was answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

# For so long after its claim a key names its one request.
KEEP_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Claim:
    """Name the one run of a request that may answer it.

    `run_id` is new with every run: what a run that was taken over says later changes nothing.
    """

    tenant_id: UUID
    key_id: UUID
    idempotency_key: str
    run_id: UUID


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold a whole answer as it went over the wire."""

    status: int
    content_type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SealedAnswer:
    """Hold an answer as the store has it: encrypted; None where it is not kept."""

    status: int
    content_type: str
    sealed: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """Say what is known of a request that came before; without an answer it still runs."""

    body_hash: bytes
    answer: SealedAnswer | None


@dataclass(frozen=True, slots=True)
class KeyedAnswer:
    """Hold an answer on its way to its record; whose it is, and of which run, the bill says."""

    idempotency_key: str
    body_hash: bytes
    answer: SealedAnswer
