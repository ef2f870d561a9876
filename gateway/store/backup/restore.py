"""Restore a backup into a data directory that has nothing yet."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from gateway.credentials import Secrets
from gateway.data_dir import SPOOL_DIR
from gateway.domain.admin import AuditHead
from gateway.errors import BackupRefused
from gateway.store.audit import SqlAudit
from gateway.store.audit_chain import AuditChain
from gateway.store.backup import programs
from gateway.store.backup.copying import copy_file, measure
from gateway.store.backup.manifest import DUMP, FILES, JOURNAL, SECRET, Manifest, read_manifest
from gateway.store.backup.mark import is_marked, set_mark, take_mark
from gateway.store.backup.snapshot import is_empty, snapshot
from gateway.store.database import Database
from gateway.store.embedded import EmbeddedServers
from gateway.store.kept_heads import KeptHeads
from gateway.store.migrate import HEAD
from gateway.store.postgres_roles import drop_database, ensure_roles, ensure_steps_down
from gateway.store.postgres_server import MAINTENANCE, MAJOR, OWNER, SUPERUSER
from gateway.store.secrets import put_secret, secret_path
from gateway.store.storage_place import FILES_DIR

_PLACES: Final = {JOURNAL: SPOOL_DIR, FILES: FILES_DIR}


@dataclass(frozen=True, slots=True)
class Restored:
    """Say what was restored, and where its audit log was broken already when it was backed up."""

    manifest: Manifest
    audit_broken_seq: int | None


async def restore(
    source: Path,
    data_dir: Path,
    *,
    secret: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Restored:
    """Restore a backup; `secret` is a file with the root secret where the backup has none.

    Raises: `BackupRefused`: the backup is not whole, is of a newer release or lacks its secret,
    the data directory holds something, or what was restored is not what was backed up;
    `StartupFailed`; `OSError`.
    """
    manifest = read_manifest(source)
    _check_versions(manifest)
    secrets = _find_secret(manifest, source, data_dir, secret)
    tell("checking the backup")
    await asyncio.to_thread(_check_entries, source, manifest)
    servers = EmbeddedServers(data_dir, valkey=False)
    try:
        _refuse_files(data_dir)
        await asyncio.to_thread(servers.start)
        await _make_room(servers, data_dir)
        tell("files and journal")
        put_secret(data_dir, secrets)
        for directory, place in _PLACES.items():
            for name in manifest.names_below(directory):
                copy_file(source / name, data_dir / place / name.partition("/")[2])
        tell("database")
        owner = servers.database_url(OWNER)
        await ensure_steps_down(owner)
        await asyncio.to_thread(programs.load, source / DUMP, owner)
        tell("comparing")
        broken_seq = await _compare(servers.database_url(SUPERUSER), manifest, secrets, data_dir)
        take_mark(data_dir)
    finally:
        await asyncio.to_thread(servers.stop)
    return Restored(manifest, broken_seq)


def _check_versions(manifest: Manifest) -> None:
    if manifest.revision > HEAD:
        raise BackupRefused(
            f"the backup has schema {manifest.revision}, of Sluice {manifest.sluice}; this one "
            f"knows {HEAD}: restore it with that release or a newer one"
        )
    if manifest.postgres_major > int(MAJOR):
        raise BackupRefused(
            f"the backup is of PostgreSQL {manifest.postgres_major}, the embedded one is {MAJOR}"
        )


def _find_secret(manifest: Manifest, source: Path, data_dir: Path, given: Path | None) -> Secrets:
    """Find the root secret that the keys were made with. Raises: `BackupRefused`."""
    places = [given, secret_path(data_dir), source / SECRET if SECRET in manifest.entries else None]
    for place in places:
        if place is None or (place is not given and not place.exists()):
            continue
        try:
            secrets = Secrets(place.read_bytes())
        except (OSError, ValueError) as exc:
            raise BackupRefused(f"{place} is no root secret: {exc}") from None
        if secrets.pepper_id != manifest.pepper_id:
            raise BackupRefused(
                f"{place} is another root secret than the backup's keys were made with "
                f"({secrets.pepper_id}, not {manifest.pepper_id})"
            )
        if not manifest.is_signed(secrets.backup_key):
            raise BackupRefused(f"the manifest of {source} was changed after it was written")
        return secrets
    raise BackupRefused(
        "the backup was made without the root secret, and no key, kept answer or record of the "
        "audit log is of use without it: name the file secrets/root of the data directory that "
        f"was backed up with --secret (its name is {manifest.pepper_id})"
    )


def _check_entries(source: Path, manifest: Manifest) -> None:
    """Read all of the backup. Raises: `BackupRefused`: something is missing or damaged."""
    for name, entry in manifest.entries.items():
        try:
            found = measure(source / name)
        except OSError as exc:
            raise BackupRefused(f"{source} is not whole: {name}: {exc.strerror}") from None
        if found != entry:
            raise BackupRefused(
                f"{source} is damaged: {name} is not what was written "
                f"({found.size_bytes} bytes, not {entry.size_bytes}, or others)"
            )


def _refuse_files(data_dir: Path) -> None:
    """Raise `BackupRefused` where somebody's files or journal are, which no restore put there."""
    for place in _PLACES.values():
        directory = data_dir / place
        if directory.is_dir() and any(directory.iterdir()) and not is_marked(data_dir):
            raise BackupRefused(f"{directory} is not empty: choose another with --data-dir")


async def _make_room(servers: EmbeddedServers, data_dir: Path) -> None:
    """Mark the directory as half restored, without what an earlier try has left."""
    if not await is_empty(servers.database_url(SUPERUSER)):
        if not is_marked(data_dir):
            raise BackupRefused(
                f"the database of {data_dir} is not empty: choose another with --data-dir"
            )
        maintenance = servers.database_url(SUPERUSER, MAINTENANCE)
        await drop_database(maintenance)
        await ensure_roles(maintenance)
    set_mark(data_dir)
    for place in _PLACES.values():
        shutil.rmtree(data_dir / place, ignore_errors=True)


async def _compare(url: str, manifest: Manifest, secrets: Secrets, data_dir: Path) -> int | None:
    """Hold what was restored against what was backed up, and keep the heads of the audit log.

    Return the first record of that at which its chain does not hold. Raises: `BackupRefused`.
    """
    async with snapshot(url) as seen:
        for name, now, before in (
            ("ledger", seen.ledger, manifest.ledger),
            ("audit log", seen.audit_heads, manifest.audit_heads),
            ("schema", seen.revision, manifest.revision),
        ):
            if now != before:
                raise BackupRefused(f"the {name} is not what was backed up: {now}, not {before}")
    database, broken_seq = Database(url), None
    try:
        log = SqlAudit(database, AuditChain(secrets))
        for organisation, (seq, digest) in manifest.audit_heads.items():
            head = AuditHead(seq, bytes.fromhex(digest))
            verdict = await log.verify(UUID(organisation), [head])
            broken_seq = broken_seq or verdict.broken_seq or verdict.lost_seq
            KeptHeads(data_dir).write(UUID(organisation), head)
    finally:
        await database.close()
    return broken_seq
