"""The wire types of files, in OpenAI's shapes, and the description of what is asked."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from gateway.api.openai.ids import FILE_ID, file_name
from gateway.domain.files import UPLOAD_PURPOSES, StoredFile

MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 2_592_000
DEFAULT_LIMIT, MAX_LIMIT = 100, 10_000


class FileObject(msgspec.Struct, kw_only=True):
    """Show a file; `sha256` (hexadecimal) is ours."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = None
    sha256: str


class FileList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class FileDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def file_object(file: StoredFile) -> FileObject:
    """Show a file as OpenAI's clients read it."""
    return FileObject(
        id=file_name(file.id),
        bytes=file.size_bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=None if file.expires_at is None else int(file.expires_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
        sha256=file.sha256.hex(),
    )


UPLOAD_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        # No type, as OpenAPI 3.1 has it: raw bytes are none of JSON's.
        "file": {"contentMediaType": "application/octet-stream", "minLength": 1},
        "purpose": {"type": "string", "enum": list(UPLOAD_PURPOSES)},
        "expires_after[anchor]": {"type": "string", "const": "created_at"},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": MIN_EXPIRY_S,
            "maximum": MAX_EXPIRY_S,
        },
    },
    "required": ["file", "purpose"],
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
    "additionalProperties": False,
}
LIST_PARAMETERS: Final[list[dict[str, Any]]] = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in {
        "purpose": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        "after": {"type": "string", "pattern": FILE_ID},
        "order": {"type": "string", "enum": ["asc", "desc"]},
    }.items()
]
ID_PARAMETER: Final = {
    "name": "file_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": FILE_ID},
}
