"""Plans: limits by name, which the tenants on them inherit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.domain.quota import Quota


@dataclass(frozen=True, slots=True)
class Plan:
    """Name limits; a change of them is the next `version` and holds for every tenant on it."""

    id: UUID
    organisation_id: UUID
    name: str
    version: int
    created_at: datetime
    quota: Quota
