"""Ids of batches as clients and operators write them: `batch_` and 32 hexadecimal digits."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from gateway.errors import NotFound

BATCH_ID: Final = "^batch_[0-9a-f]{32}$"
_BATCH: Final = re.compile(r"batch_([0-9a-f]{32})", re.ASCII)


def batch_name(batch_id: UUID) -> str:
    """Write a batch's id."""
    return f"batch_{batch_id.hex}"


def read_batch_id(text: str, *, param: str = "batch_id") -> UUID:
    """Read a batch's id. Raises: `NotFound`: no batch has such a one."""
    if match := _BATCH.fullmatch(text):
        return UUID(match[1])
    raise NotFound("There is no such batch.", param=param)
