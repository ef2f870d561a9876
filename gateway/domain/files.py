"""Files: what tenants upload for their batches, and what their batches give them back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import randbits
from typing import Final
from uuid import UUID

# Purposes that an upload may have; `BATCH_OUTPUT` is ours alone.
BATCH_INPUT, BATCH_OUTPUT, USER_DATA = "batch", "batch_output", "user_data"
UPLOAD_PURPOSES: Final = (BATCH_INPUT, USER_DATA)
PURPOSES: Final = (*UPLOAD_PURPOSES, BATCH_OUTPUT)

MAX_FILE_BYTES: Final = 512_000_000
MAX_BATCH_INPUT_BYTES: Final = 200_000_000
# What a file counts for at least, of what its tenant may store.
LEAST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Hold what is known of a file that is whole; its bytes are in the storage under its id."""

    id: UUID
    tenant_id: UUID
    filename: str
    purpose: str
    size_bytes: int
    sha256: bytes
    created_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FileDraft:
    """Say what is about to be written: nobody can see it before it is whole."""

    id: UUID
    tenant_id: UUID
    filename: str
    purpose: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """Say what was written into the storage."""

    size_bytes: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class WholeFile:
    """Hold a file whose bytes are all there, and that nobody sees yet."""

    draft: FileDraft
    written: Written


def new_file_id(at: datetime) -> UUID:
    """Draw an id that tells when it was made, to the millisecond: UUIDv7, RFC 9562."""
    at_ms = int(at.timestamp() * 1000)
    return UUID(int=at_ms << 80 | 0x7 << 76 | randbits(12) << 64 | 0b10 << 62 | randbits(62))


def id_time(file_id: UUID) -> datetime | None:
    """Return when an id was made; None where it does not tell, or what no clock of ours does."""
    if file_id.version != 7:
        return None
    try:
        return datetime.fromtimestamp((file_id.int >> 80) / 1000, UTC)
    except ValueError:
        # It has room for years beyond 9999.
        return None
