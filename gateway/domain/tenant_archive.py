"""Archived tenants: out of use for good, but for what they have used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gateway.domain import Tenant, is_name

_SUFFIX: Final = re.compile(r"~[0-9a-f]{8}", re.ASCII)
_SUFFIX_CHARS: Final = 9


@dataclass(frozen=True, slots=True)
class ArchivedTenant:
    """Hold a tenant as it is archived, with the kids of the keys and admin tokens that it ended."""

    tenant: Tenant
    ended_keys: Sequence[str]
    ended_tokens: Sequence[str]


def archived_name(name: str, tenant_id: UUID) -> str:
    """Return what a tenant is called from then on, which `is_name` lets no tenant be named."""
    return f"{name}~{tenant_id.hex[:8]}"


def is_past_name(text: str) -> bool:
    """Tell whether `text` may be what a tenant is or was called, archived ones included."""
    name, suffix = text[:-_SUFFIX_CHARS], text[-_SUFFIX_CHARS:]
    return is_name(text) or (is_name(name) and _SUFFIX.fullmatch(suffix) is not None)
