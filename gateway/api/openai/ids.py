"""Ids of files as clients write them, `file-` and 32 hexadecimal digits, and those of batches."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from gateway.api.batch_ids import BATCH_ID, batch_name, read_batch_id
from gateway.errors import FileNotFound

__all__ = ["BATCH_ID", "FILE_ID", "batch_name", "file_name", "read_batch_id", "read_file_id"]

FILE_ID: Final = "^file-[0-9a-f]{32}$"
_FILE: Final = re.compile(r"file-([0-9a-f]{32})", re.ASCII)


def file_name(file_id: UUID) -> str:
    """Write a file's id."""
    return f"file-{file_id.hex}"


def read_file_id(text: str, *, param: str = "file_id") -> UUID:
    """Read a file's id. Raises: `FileNotFound`: no file has such a one."""
    if match := _FILE.fullmatch(text):
        return UUID(match[1])
    raise FileNotFound(param=param)
