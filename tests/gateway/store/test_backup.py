"""Backups of the embedded database: what is in them, what they refuse, what a restore finds."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import anyio
import asyncpg
import pytest

from gateway.credentials import KEY_PREFIX, Secrets, parse_token
from gateway.data_dir import SPOOL_DIR
from gateway.domain.usage import UsageRow
from gateway.errors import BackupRefused, StartupFailed
from gateway.services.ledger import Spool
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.backup import back_up, restore
from gateway.store.backup.manifest import NAME, Manifest, read_manifest, write_manifest
from gateway.store.backup.mark import NAME as MARK
from gateway.store.backup.mark import is_marked
from gateway.store.diagnosis import running_sockets
from gateway.store.embedded import EmbeddedServers
from gateway.store.migrate import HEAD
from gateway.store.postgres_server import DATABASE, OWNER, SUPERUSER, socket_url
from tests.gateway.store.agreeing_sums import assert_sums_agree
from tests.gateway.usage_rows import usage_row
from tests.made_stores import MadeStores
from tests.passable import passable_directory

pytestmark = pytest.mark.anyio

# Whose tables are, who is kept from which rows, and who may do what.
_RIGHTS = (
    "SELECT relname, relowner::regrole::text, relrowsecurity, relforcerowsecurity, "
    "coalesce(relacl::text, '') FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
    "WHERE nspname = 'public' AND relkind IN ('r', 'p') ORDER BY relname"
)


class Backed:
    """A data directory that was backed up while its store was open, and what was in it."""

    def __init__(self, parent: Path) -> None:
        self.data_dir, self.backup = parent / "data", parent / "backup"
        self.rows: list[UsageRow] = []
        self.waiting: list[UsageRow] = []
        self.key = ""
        self.manifest: Manifest
        self.rights: list[tuple[object, ...]] = []

    def settings(self) -> Settings:
        return Settings(data_dir=self.data_dir)

    def copy(self, parent: Path) -> Path:
        """Copy the backup, to be damaged."""
        return Path(shutil.copytree(self.backup, parent / "copy"))

    @property
    def secret(self) -> Path:
        return self.data_dir / "secrets" / "root"


@pytest.fixture(scope="module")
def backed(made_stores: MadeStores) -> Iterator[Backed]:
    """Back a store up that is in use; what is written afterwards is not in it."""
    with passable_directory() as parent:
        backed = Backed(parent)
        made_stores.copy(backed.data_dir)
        anyio.run(_use_and_back_up, backed)
        yield backed


async def _use_and_back_up(backed: Backed) -> None:
    async with open_store(backed.settings()) as store:
        assert store.first_start is not None
        backed.key = store.first_start.keys[0].token
        backed.rows = [usage_row(nano_usd=number) for number in range(20)]
        await store.ledger.insert(backed.rows)
        # A process that died, and one that lives: neither's rows are in the ledger yet.
        spool = Spool(backed.data_dir / SPOOL_DIR)
        backed.waiting = [usage_row(), usage_row()]
        for row in backed.waiting:
            spool.append(row)
        sockets = running_sockets(backed.data_dir)
        assert sockets is not None
        backed.rights = await _rights(socket_url(sockets, SUPERUSER, DATABASE))
        backed.manifest = await back_up(backed.data_dir, backed.backup, with_files=True)
        await store.ledger.insert([usage_row()])
        spool.close()


@asynccontextmanager
async def _restored(backed: Backed, data_dir: Path) -> AsyncIterator[Store]:
    await restore(backed.backup, data_dir, secret=backed.secret)
    async with open_store(Settings(data_dir=data_dir)) as store:
        yield store


def test_a_backup_is_for_its_user_alone(backed: Backed) -> None:
    """Directories have mode 0700 and files 0600; the root secret is in none."""
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
        for path in (backed.backup, *backed.backup.rglob("*"))
    }
    assert modes == {(True, 0o700), (False, 0o600)}
    root = backed.secret.read_bytes()
    for path in backed.backup.rglob("*"):
        assert path.is_dir() or root not in path.read_bytes()


async def test_a_restored_store_is_what_was_backed_up(backed: Backed, used_data_dir: Path) -> None:
    """Rows and sums are those of the snapshot, and go on agreeing; the journal waits to be read;
    keys match; the chain of the audit log holds, and its head is kept; tables have their owner and
    their policies.
    """
    data_dir = used_data_dir
    async with _restored(backed, data_dir) as store:
        assert store.first_start is None
        sockets = running_sockets(data_dir)
        assert sockets is not None
        rights = await _rights(socket_url(sockets, SUPERUSER, DATABASE))
        assert rights == backed.rights
        assert {row[1] for row in rights} == {OWNER}
        async with store.database.platform() as connection:
            rows = await connection.exec_driver_sql("SELECT request_id FROM usage_events")
            assert {row[0] for row in rows} == {row.request_id for row in backed.rows}
        await assert_sums_agree(store.database)
        await store.ledger.insert([usage_row()])
        await assert_sums_agree(store.database)
        token = parse_token(backed.key, KEY_PREFIX)
        assert token is not None
        assert await store.keys.find(token.kid) is not None
        [organisation] = backed.manifest.audit_heads
        kept = store.kept_heads.read(UUID(organisation))
        assert kept is not None
        assert kept.seq == backed.manifest.audit_heads[organisation][0]
        assert (await store.audit.verify(UUID(organisation), [kept])).broken_seq is None
    spool = Spool(data_dir / SPOOL_DIR)
    assert {row.request_id for row in spool.unledgered()} == {
        row.request_id for row in backed.waiting
    }
    spool.close()
    assert backed.manifest.ledger.rows == len(backed.rows)
    assert backed.manifest.ledger.nano_usd == sum(range(20))
    assert not is_marked(data_dir)


async def test_a_backup_without_its_secret_says_so(backed: Backed, data_dir: Path) -> None:
    """Without the root secret, or with another one, a restore begins nothing; with it in the
    backup nothing else is needed."""
    with pytest.raises(BackupRefused, match=r"without the root secret.*--secret"):
        await restore(backed.backup, data_dir)
    other = data_dir.parent / "other"
    other.write_bytes(os.urandom(32))
    with pytest.raises(BackupRefused, match="another root secret"):
        await restore(backed.backup, data_dir, secret=other)
    assert not _is_there(data_dir)
    whole = data_dir.parent / "whole"
    await back_up(backed.data_dir, whole, with_files=True, with_secret=True)
    await restore(whole, data_dir)
    assert (data_dir / "secrets" / "root").read_bytes() == backed.secret.read_bytes()
    assert stat.S_IMODE((data_dir / "secrets" / "root").stat().st_mode) == 0o600


async def test_nothing_is_restored_over_anything(
    backed: Backed, made_stores: MadeStores, data_dir: Path
) -> None:
    """A database with tables, a journal, a file, or the data directory of a server is refused, and
    left as it was."""
    with pytest.raises(BackupRefused, match="is not empty"):
        await restore(backed.backup, backed.data_dir)
    made_stores.copy(data_dir)
    with pytest.raises(BackupRefused, match=r"database of .* is not empty"):
        await restore(backed.backup, data_dir, secret=backed.secret)
    busy = pytest.raises(StartupFailed, match="another sluice process")
    with EmbeddedServers(data_dir, postgres=False, valkey=False), busy:
        await restore(backed.backup, data_dir, secret=backed.secret)
    for place in (SPOOL_DIR, "files"):
        taken = data_dir.parent / f"with-{place}"
        (taken / place).mkdir(parents=True)
        (taken / place / "kept").touch()
        with pytest.raises(BackupRefused, match=f"{place} is not empty"):
            await restore(backed.backup, taken, secret=backed.secret)
        assert (taken / place / "kept").exists()
    assert not is_marked(data_dir)


async def test_what_is_not_whole_is_refused(backed: Backed, data_dir: Path) -> None:
    """A backup without its manifest was not finished; one that lacks a file, or has another byte
    or another manifest, is damaged, and a pipe is none of them; each is refused before anything
    is written."""
    copy = backed.copy(data_dir.parent)
    manifest = (copy / NAME).read_bytes()
    journal = copy / next(iter(backed.manifest.names_below("journal")))
    body = bytearray(journal.read_bytes())

    async def refusal() -> str:
        with pytest.raises(BackupRefused) as caught:
            await restore(copy, data_dir, secret=backed.secret)
        assert not _is_there(data_dir)
        return str(caught.value)

    (copy / NAME).unlink()
    assert "was not finished" in await refusal()
    (copy / NAME).write_bytes(manifest[:-40])
    assert "is damaged" in await refusal()
    (copy / NAME).write_bytes(manifest.replace(b'"rows": 20', b'"rows": 21'))
    assert "changed after it was written" in await refusal()
    (copy / NAME).write_bytes(manifest)
    body[20] ^= 1
    journal.write_bytes(body)
    assert "is not what was written" in await refusal()
    journal.unlink()
    assert "is not whole" in await refusal()
    os.mkfifo(journal)
    assert "it is no file" in await refusal()
    (copy / NAME).unlink()
    os.mkfifo(copy / NAME)
    assert "was not finished" in await refusal()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "newer Sluice"),
        ({"revision": "9999"}, f"this one knows {HEAD}"),
        ({"postgres_major": 99}, "PostgreSQL 99"),
        ({"entries": {"../../etc/x": [1, "00"]}}, "names what no backup has"),
    ],
)
async def test_versions_are_compared(
    backed: Backed, data_dir: Path, change: dict[str, object], said: str
) -> None:
    """A format, a schema or a PostgreSQL that this release does not know is refused by name."""
    copy = backed.copy(data_dir.parent)
    document = json.loads((copy / NAME).read_bytes()) | change
    (copy / NAME).write_text(json.dumps(document))
    with pytest.raises(BackupRefused, match=said):
        await restore(copy, data_dir, secret=backed.secret)


async def test_half_a_restore_is_known_and_done_again(backed: Backed, used_data_dir: Path) -> None:
    """Where a restore ended too soon no server starts, and the next restore begins anew."""
    data_dir = used_data_dir
    copy = backed.copy(data_dir.parent)
    # As whoever has the secret could: sums that the dump has not.
    secrets = Secrets(backed.secret.read_bytes())
    document = json.loads((copy / NAME).read_bytes())
    document["ledger"]["rows"] += 1
    (copy / NAME).write_text(json.dumps(document))
    signed = read_manifest(copy).signed(secrets.backup_key)
    (copy / NAME).unlink()
    write_manifest(copy, signed)
    with pytest.raises(BackupRefused, match="ledger is not what was backed up"):
        await restore(copy, data_dir, secret=backed.secret)
    assert (data_dir / MARK).exists()
    with pytest.raises(StartupFailed, match="was not finished"):
        async with open_store(Settings(data_dir=data_dir)):
            pass
    with pytest.raises(StartupFailed, match="was not finished"):
        await back_up(data_dir, data_dir.parent / "again", with_files=True)
    async with _restored(backed, data_dir) as store:
        assert store.first_start is None


async def test_a_backup_that_fails_leaves_nothing(
    backed: Backed, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that is not empty is left as it is; without room, or with another root secret, what
    was written is removed."""
    taken = data_dir.parent / "taken"
    taken.mkdir()
    (taken / "kept").touch()
    with pytest.raises(BackupRefused, match="is not empty"):
        await back_up(backed.data_dir, taken, with_files=True)
    assert [path.name for path in taken.iterdir()] == ["kept"]
    with pytest.raises(BackupRefused, match="nothing to back up"):
        await back_up(data_dir, data_dir.parent / "none", with_files=True)
    usage = shutil.disk_usage("/")._replace(free=1 << 30)
    monkeypatch.setattr("gateway.store.backup.write.shutil.disk_usage", lambda path: usage)
    full = data_dir.parent / "full"
    with pytest.raises(BackupRefused, match="must stay free"):
        await back_up(backed.data_dir, full, with_files=True)
    assert not full.exists()


async def test_files_are_those_of_the_snapshot(
    backed: Backed, made_stores: MadeStores, data_dir: Path
) -> None:
    """A file that the snapshot lists is in the backup, one that is gone by then is counted, and one
    that nobody lists is not."""
    made_stores.copy(data_dir)
    listed, gone, unknown = uuid4(), uuid4(), uuid4()
    async with open_store(Settings(data_dir=data_dir)) as store:

        async def body() -> AsyncIterator[bytes]:
            yield b"what a tenant keeps"

        for file_id in (listed, unknown):
            await store.file_storage.write(file_id, body(), max_bytes=100)
        async with store.database.platform() as connection:
            for file_id in (listed, gone):
                await connection.exec_driver_sql(
                    "INSERT INTO files (id, tenant_id, filename, purpose, is_ready, size_bytes, "
                    "sha256) SELECT $1, id, 'a', 'batch', true, 19, decode(repeat('00', 32), 'hex')"
                    " FROM tenants LIMIT 1",
                    (file_id,),
                )
        backup = data_dir.parent / "backup"
        manifest = await back_up(data_dir, backup, with_files=True, with_secret=True)
    assert manifest.names_below("files") == [f"files/{listed.hex[-2:]}/{listed.hex}"]
    assert manifest.files_missing == 1
    second = data_dir.parent / "second"
    await restore(backup, second)
    async with open_store(Settings(data_dir=second)) as store:
        read = [chunk async for chunk in store.file_storage.read(listed)]
    assert b"".join(read) == b"what a tenant keeps"


def _is_there(path: Path) -> bool:
    return path.exists()


async def _rights(url: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    found = [tuple(row) for row in await connection.fetch(_RIGHTS)]
    await connection.close()
    return found
