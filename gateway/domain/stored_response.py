"""What is stored of a response, and of those before it that it goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID


@dataclass(frozen=True, slots=True)
class SealedResponse:
    """Hold a response as the database has it: what was sent and answered, encrypted.

    `depth` counts the responses of its chain, itself included, and `chain_bytes` what they take.
    """

    id: UUID
    tenant_id: UUID
    previous_id: UUID | None
    depth: int
    chain_bytes: int
    sent: bytes
    answer: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.sent) + len(self.answer)


@dataclass(frozen=True, slots=True)
class Chain:
    """Hold what a new response goes on from: the items of all turns before, in their order."""

    previous_id: UUID | None
    depth: int
    num_bytes: int
    items: Sequence[dict[str, Any]]


NO_CHAIN: Final = Chain(None, 0, 0, ())
