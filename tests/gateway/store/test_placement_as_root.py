"""Where the servers live when root starts them; collected under root alone."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import shutil
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.errors import StartupFailed
from gateway.store import placement
from gateway.store.embedded import EmbeddedServers
from gateway.store.postgres_server import LOGIN, OWNER, SUPERUSER
from gateway.store.postgres_server import SOCKET as POSTGRES_SOCKET
from gateway.store.valkey_server import SOCKET as VALKEY_SOCKET
from tests.another_user import another_user, postgres_says, valkey_says

# The first of the range; no machine that runs these tests has a user of it.
OWN = 65533


@pytest.fixture
def shared_homes(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> Path:
    """Put the machine's place for clusters below the test's own directory."""
    homes = data_dir.parent / "var-lib-sluice"
    monkeypatch.setattr(placement, "_SHARED_HOMES", homes)
    return homes


def test_a_data_directory_that_others_may_pass_holds_all(
    data_dir: Path, shared_homes: Path
) -> None:
    """The cluster moves with the data directory, which lets one group pass and nobody list."""
    with EmbeddedServers(data_dir):
        pass
    assert data_dir.stat().st_gid == OWN
    assert {path.stat().st_uid for path in (data_dir / "postgres").rglob("*")} == {OWN}
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o710
    assert not shared_homes.exists()


def test_below_a_private_directory_the_cluster_is_kept_elsewhere(
    data_dir: Path, shared_homes: Path
) -> None:
    """The place is recorded, used again at the next start, and closed to others."""
    private = data_dir.parent / "root"
    private.mkdir(mode=0o700)
    for _ in range(2):
        with EmbeddedServers(private / "data"):
            pass
    [home] = shared_homes.iterdir()
    assert (private / "data" / "embedded-home").read_text().strip() == str(home)
    assert (home / "postgres" / "PG_VERSION").exists()
    assert stat.S_IMODE(home.stat().st_mode) == 0o710
    assert stat.S_IMODE((private / "data").stat().st_mode) == 0o700


def test_a_recorded_cluster_that_is_gone_is_no_silent_new_one(
    data_dir: Path, shared_homes: Path
) -> None:
    """The start fails and says which file to mend."""
    data_dir.mkdir(mode=0o700)
    (data_dir / "embedded-home").write_text(str(shared_homes / "gone"))
    with pytest.raises(StartupFailed, match="embedded-home says"), EmbeddedServers(data_dir):
        pass


def test_another_user_cannot_reach_the_sockets_or_the_files(used_data_dir: Path) -> None:
    """`nobody`, as whom any program may run, passes to none of it."""
    with EmbeddedServers(used_data_dir) as servers:
        for path in (servers.sockets / POSTGRES_SOCKET, servers.sockets / VALKEY_SOCKET):
            with pytest.raises(PermissionError), another_user():
                postgres_says(path, SUPERUSER)
        for file in ("postgres/PG_VERSION", "access/valkey.conf", "valkey", "secrets", "log"):
            with pytest.raises(PermissionError), another_user():
                (used_data_dir / file).stat()


@pytest.mark.parametrize("uid", [65534, 65533], ids=["nobody", "the servers' own"])
def test_another_user_who_reaches_the_sockets_is_refused(used_data_dir: Path, uid: int) -> None:
    """With every directory and socket opened to all, each server still asks who is there."""
    with EmbeddedServers(used_data_dir) as servers:
        for path in (used_data_dir, servers.sockets, *servers.sockets.iterdir()):
            path.chmod(0o777)
        with another_user(uid):
            for user in (SUPERUSER, OWNER, LOGIN):
                said = postgres_says(servers.sockets / POSTGRES_SOCKET, user)
                assert said[:1] == b"E"
                assert b"Peer authentication failed" in said
            assert valkey_says(servers.sockets / VALKEY_SOCKET).startswith(b"-NOAUTH")
        assert postgres_says(servers.sockets / POSTGRES_SOCKET, LOGIN)[:1] == b"R"


def test_a_cluster_of_before_is_moved(used_data_dir: Path) -> None:
    """What ran as `nobody` and trusted everybody keeps its rows, and trusts nobody any more."""
    with EmbeddedServers(used_data_dir, valkey=False) as servers:
        _sql(servers, "CREATE TABLE kept AS SELECT 42 AS answer")
    cluster = used_data_dir / "postgres"
    for path in (cluster, *cluster.rglob("*"), used_data_dir / "valkey"):
        os.chown(path, 65534, 65534)
    os.chown(used_data_dir, 0, 65534)
    (cluster / "pg_hba.conf").write_text("local all all trust\n")
    shutil.rmtree(used_data_dir / "access")
    with EmbeddedServers(used_data_dir) as servers:
        assert _sql(servers, "SELECT answer FROM kept") == 42
        assert {path.stat().st_uid for path in (cluster, *cluster.rglob("*"))} == {OWN}
        assert used_data_dir.stat().st_gid == OWN
        for path in (used_data_dir, servers.sockets, *servers.sockets.iterdir()):
            path.chmod(0o777)
        with another_user():
            assert postgres_says(servers.sockets / POSTGRES_SOCKET, SUPERUSER)[:1] == b"E"


def test_a_move_that_was_killed_is_finished(used_data_dir: Path) -> None:
    """A cluster of which half has changed hands is whole after the next start."""
    cluster = used_data_dir / "postgres"
    for path in (cluster, *sorted(cluster.rglob("*"))[::2]):
        os.chown(path, 65534, 65534)
    with EmbeddedServers(used_data_dir, valkey=False):
        assert {path.stat().st_uid for path in (cluster, *cluster.rglob("*"))} == {OWN}


def test_a_number_that_somebody_has_is_not_taken(
    used_data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a user or a group has got the number since, the servers take the next."""
    listed = pwd.getpwall()
    someone = pwd.struct_passwd(("someone", "x", OWN, 100, "", "/", "/bin/sh"))
    group = grp.struct_group(("some", "x", OWN - 1, []))
    monkeypatch.setattr(pwd, "getpwall", lambda: [*listed, someone])
    monkeypatch.setattr(grp, "getgrall", lambda: [group])
    with EmbeddedServers(used_data_dir):
        assert (used_data_dir / "postgres").stat().st_uid == OWN - 2
        assert used_data_dir.stat().st_gid == OWN - 2


def test_a_users_own_cluster_is_left(used_data_dir: Path) -> None:
    """Who starts a user's data directory as root by mistake takes nothing from that user."""
    cluster = used_data_dir / "postgres"
    for path in (cluster, *cluster.rglob("*")):
        os.chown(path, 1000, 1000)
    with pytest.raises(StartupFailed, match="did not start"):
        EmbeddedServers(used_data_dir).__enter__()
    assert {path.stat().st_uid for path in (cluster, *cluster.rglob("*"))} == {1000}


def test_no_other_nobody_meddles_while_the_cluster_is_made(data_dir: Path) -> None:
    """initdb runs as a uid that others have too; these pass to none of its files."""
    seen: list[str] = []

    def watch() -> None:
        while not (data_dir / "postgres").exists():
            for fresh in data_dir.glob("postgres.*"):
                seen.append(f"{fresh.stat().st_uid}:{fresh.stat().st_gid}")
                assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
                assert stat.S_IMODE(data_dir.stat().st_mode) == 0o710
                assert data_dir.stat().st_gid == OWN
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(watch)
        with EmbeddedServers(data_dir, valkey=False):
            pass
        watching.result()
    assert f"65534:{OWN}" in seen


def test_a_gid_apart_keeps_others_of_the_uid_off() -> None:
    """What initdb relies on: a process of its uid and another gid may not look into it."""
    with subprocess.Popen(["sleep", "60"], user=65534, group=OWN, extra_groups=[]) as process:
        try:
            for file, may in (("cmdline", True), ("environ", False), ("mem", False)):
                expected = contextlib.nullcontext() if may else pytest.raises(PermissionError)
                with expected, another_user():
                    Path(f"/proc/{process.pid}/{file}").open("rb").close()
        finally:
            process.kill()


def test_the_servers_get_none_of_roots_rights(data_dir: Path) -> None:
    """Both run with one user and one group, and see none of our environment."""
    os.environ["SLUICE_TEST_SECRET"] = "secret"
    try:
        with EmbeddedServers(data_dir):
            seen = [
                Path(f"/proc/{entry.name}")
                for entry in Path("/proc").iterdir()
                if entry.name.isdigit() and _works_below(entry, data_dir)
            ]
            assert seen
            for process in seen:
                status = (process / "status").read_text()
                for kind in ("Uid", "Gid"):
                    assert f"{kind}:\t{OWN}\t{OWN}\t{OWN}\t{OWN}\n" in status
                assert "Groups:\t \n" in status or "Groups:\t\n" in status
                assert b"SLUICE_TEST_SECRET" not in (process / "environ").read_bytes()
    finally:
        del os.environ["SLUICE_TEST_SECRET"]


def _works_below(process: Path, directory: Path) -> bool:
    try:
        return (process / "cwd").readlink().is_relative_to(directory)
    except OSError:
        return False


def _sql(servers: EmbeddedServers, statement: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(servers.database_url(OWNER))
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())
