"""What a backup says of itself: its last file, without which it is none."""

from __future__ import annotations

import hmac
import os
import re
from pathlib import Path
from typing import Final

import msgspec

from gateway.errors import BackupRefused

NAME: Final = "manifest.json"
DUMP, JOURNAL, FILES, SECRET = "database.dump", "journal", "files", "root-secret"

# Raised when an older release could not read what a newer one writes.
FORMAT: Final = 1
_PLAIN: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*(/[0-9A-Za-z][0-9A-Za-z._-]*)*", re.ASCII)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Say what a file of the backup holds."""

    size_bytes: int
    sha256: str


class Sums(msgspec.Struct, frozen=True):
    """Add up the ledger: its rows, and apart from them its sums by the hour."""

    rows: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    nano_usd: int
    hourly_requests: int
    hourly_nano_usd: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a backup.

    `audit_heads` are `[seq, hash]` by organisation. `pepper_id` names the root secret. Of the files
    that the database lists, `files_missing` had been deleted before they could be copied; where
    files are kept outside the data directory, none are in the backup (`has_files`). `mac` is made
    with a key of the root secret: who has not that changes no byte of a backup unseen.
    """

    format: int
    made_at: str
    sluice: str
    postgres_major: int
    revision: str
    pepper_id: str
    ledger: Sums
    audit_heads: dict[str, tuple[int, str]]
    has_files: bool
    files_missing: int
    entries: dict[str, Entry]
    mac: str = ""

    def signed(self, key: bytes) -> Manifest:
        return msgspec.structs.replace(self, mac=self._mac(key))

    def is_signed(self, key: bytes) -> bool:
        return hmac.compare_digest(self.mac, self._mac(key))

    def _mac(self, key: bytes) -> str:
        bare = msgspec.structs.replace(self, mac="")
        return hmac.digest(key, msgspec.json.encode(bare), "sha256").hex()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries.values())

    def names_below(self, directory: str) -> list[str]:
        """Return the names of the entries in a directory of the backup."""
        return [name for name in self.entries if name.startswith(f"{directory}/")]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write it under another name, sync, rename: it is whole where it is there."""
    fresh = directory / f"{NAME}.new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)))
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(directory / NAME)


def read_manifest(directory: Path) -> Manifest:
    """Read it. Raises: `BackupRefused`: there is none, or this release cannot read it."""
    if not directory.is_dir():
        raise BackupRefused(f"there is no backup at {directory}")
    if not (directory / NAME).is_file():
        raise BackupRefused(
            f"{directory} is no backup, or one that was not finished: it has no {NAME}"
        )
    body = (directory / NAME).read_bytes()
    try:
        number = msgspec.json.decode(body, type=_Format).format
        if number > FORMAT:
            raise BackupRefused(
                f"{directory} was made by a newer Sluice (format {number}, this one knows {FORMAT})"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as exc:
        raise BackupRefused(f"{directory / NAME} is damaged: {exc}") from None
    # Whoever wrote it, it names nothing outside the backup.
    if not all(map(_PLAIN.fullmatch, manifest.entries)) or DUMP not in manifest.entries:
        raise BackupRefused(f"{directory / NAME} is damaged: it names what no backup has")
    return manifest


class _Format(msgspec.Struct):
    format: int
