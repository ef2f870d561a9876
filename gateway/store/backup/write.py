"""Make a backup."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

from gateway import DISTRIBUTION
from gateway.credentials import Secrets
from gateway.data_dir import SPOOL_DIR
from gateway.errors import BackupRefused, DataDirectoryInUse
from gateway.store.backup import programs
from gateway.store.backup.copying import copy_file, make_directory, sync_directory
from gateway.store.backup.manifest import (
    DUMP,
    FILES,
    FORMAT,
    JOURNAL,
    SECRET,
    Entry,
    Manifest,
    write_manifest,
)
from gateway.store.backup.mark import refuse_half_restored
from gateway.store.backup.snapshot import Snapshot, snapshot
from gateway.store.diagnosis import has_cluster, running_sockets
from gateway.store.embedded import EmbeddedServers
from gateway.store.file_storage import MIN_FREE_BYTES, place_of
from gateway.store.postgres_server import DATABASE, SUPERUSER, socket_url
from gateway.store.secrets import open_secrets, secret_path
from gateway.store.storage_place import FILES_DIR

# What the journal may have: files of rows, those put aside as damaged, rows that were refused.
JOURNAL_SUFFIXES = (".spool", ".corrupt", ".jsonl")


async def back_up(
    data_dir: Path,
    destination: Path,
    *,
    with_files: bool,
    with_secret: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Manifest:
    """Back a data directory up, be its server running or not.

    `destination` is made, or is an empty directory. A backup that fails leaves nothing there; one
    that is killed leaves one without a manifest. `tell` gets a line before each part.
    Raises: `BackupRefused`, `StartupFailed`, `OSError`.
    """
    refuse_half_restored(data_dir)
    if not has_cluster(data_dir):
        raise BackupRefused(f"{data_dir} has no embedded database: there is nothing to back up")
    async with _database_url(data_dir) as url:
        with _made(destination):
            tell("journal")
            entries = _copy_journal(data_dir / SPOOL_DIR, destination)
            async with snapshot(url) as seen:
                secrets = _check_secret(data_dir, seen)
                _check_room(seen, destination)
                tell("database")
                entries[DUMP] = await asyncio.to_thread(
                    programs.dump, url, seen.name, destination / DUMP
                )
            found: dict[str, Entry] = {}
            if with_files:
                tell(f"{len(seen.file_ids)} files")
                found = _copy_files(data_dir / FILES_DIR, seen.file_ids, destination)
            entries |= found
            if with_secret:
                entries[SECRET] = copy_file(secret_path(data_dir), destination / SECRET)
            manifest = Manifest(
                format=FORMAT,
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
                sluice=version(DISTRIBUTION),
                postgres_major=seen.postgres_major,
                revision=seen.revision,
                pepper_id=secrets.pepper_id,
                ledger=seen.ledger,
                audit_heads=seen.audit_heads,
                has_files=with_files,
                files_missing=len(seen.file_ids) - len(found) if with_files else 0,
                entries=entries,
            )
            manifest = manifest.signed(secrets.backup_key)
            write_manifest(destination, manifest)
            sync_directory(destination)
            sync_directory(destination.parent)
    return manifest


@asynccontextmanager
async def _database_url(data_dir: Path) -> AsyncIterator[str]:
    """Give the URL of the database as its superuser, started for the moment if it must be."""
    servers = EmbeddedServers(data_dir, valkey=False)
    try:
        try:
            await asyncio.to_thread(servers.start)
        except DataDirectoryInUse:
            sockets = running_sockets(data_dir)
            if sockets is None:
                raise
            yield socket_url(sockets, SUPERUSER, DATABASE)
            return
        yield servers.database_url(SUPERUSER)
    finally:
        await asyncio.to_thread(servers.stop)


@contextmanager
def _made(destination: Path) -> Iterator[None]:
    """Make the directory, and on a failure leave it as it was. Raises: `BackupRefused`."""
    was_there = destination.exists()
    if was_there and (not destination.is_dir() or any(destination.iterdir())):
        raise BackupRefused(f"{destination} is not empty: name a directory that is not there yet")
    make_directory(destination)
    try:
        destination.chmod(0o700)
        yield
    except BaseException:
        for path in destination.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not was_there:
            destination.rmdir()
        raise


def _copy_journal(spool: Path, destination: Path) -> dict[str, Entry]:
    entries = {}
    for path in sorted(spool.iterdir()) if spool.is_dir() else ():
        if path.suffix in JOURNAL_SUFFIXES:
            name = f"{JOURNAL}/{path.name}"
            try:
                entries[name] = copy_file(path, destination / name)
            except FileNotFoundError:
                # All of its rows are in the ledger, of which no snapshot was taken yet.
                continue
    return entries


def _copy_files(directory: Path, file_ids: tuple[UUID, ...], destination: Path) -> dict[str, Entry]:
    entries = {}
    for file_id in file_ids:
        name = f"{FILES}/{file_id.hex[-2:]}/{file_id.hex}"
        try:
            entries[name] = copy_file(place_of(directory, file_id), destination / name)
        except FileNotFoundError:
            # It was deleted meanwhile: once restored, its row answers as for a lost file, 404.
            continue
    return entries


def _check_secret(data_dir: Path, seen: Snapshot) -> Secrets:
    """Return the root secret, which must be the one that the keys were made with."""
    if not secret_path(data_dir).exists():
        raise BackupRefused(
            f"{secret_path(data_dir)} is gone, and no key in the database is of use without it: "
            "put it back first"
        )
    secrets = open_secrets(data_dir)
    if secrets.pepper_id not in seen.pepper_ids:
        raise BackupRefused(
            f"{secret_path(data_dir)} is not the root secret that this database was made with"
        )
    return secrets


def _check_room(seen: Snapshot, destination: Path) -> None:
    """Leave a GiB to whoever else writes to that disk, the journal perhaps."""
    free_bytes = shutil.disk_usage(destination).free
    if free_bytes - seen.size_bytes < MIN_FREE_BYTES:
        raise BackupRefused(
            f"{destination} has {free_bytes >> 20} MiB left, and the backup may take "
            f"{seen.size_bytes >> 20}: at least {MIN_FREE_BYTES >> 20} must stay free"
        )
