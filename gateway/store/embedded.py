"""A private PostgreSQL 18 and Valkey 9 for one data directory.

They come from wheels, listen on Unix sockets alone (in a directory of mode 0700, and they ask who
is there: `server_access`) and run as children of `supervisor`, which stops them
when this process ends in whatever way. `placement` says where they live and as whom they run.

A start, in order: take `<data_dir>/lock`, so that two processes never share a directory; wait
until the supervisor of a killed process has let go of `<data_dir>/supervisor.lock`; stop
servers that outlived even their supervisor, known by pid file and working directory; make the
cluster, if there is none; spawn the supervisor, which inherits its lock; wait until both answer;
make the roles that are missing.

Failures: a server that does not come up is a `StartupFailed` with the last line of its log. One
that dies later is started again by the supervisor; until then its clients see refused
connections. PostgreSQL keeps `fsync`: a power cut loses nothing. Valkey writes nothing to disk:
it holds only what can be rebuilt.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import asyncpg

from gateway.errors import DataDirectoryInUse, StartupFailed
from gateway.store.placement import (
    Placement,
    Programs,
    make_socket_directory,
    place,
    record_home,
)
from gateway.store.postgres_roles import ensure_roles
from gateway.store.postgres_server import (
    DATABASE,
    LOGIN,
    MAINTENANCE,
    SUPERUSER,
    ensure_cluster,
    postgres_answers,
    postgres_server,
    socket_url,
)
from gateway.store.postgres_server import SOCKET as POSTGRES_SOCKET
from gateway.store.server_access import write_access
from gateway.store.supervisor import SupervisorSpec, script, to_argument
from gateway.store.valkey_server import SOCKET as VALKEY_SOCKET
from gateway.store.valkey_server import valkey_answers, valkey_server, valkey_url

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_LOG_BYTES_MAX = 16 << 20
_SUPERVISOR_LOG = "supervisor.log"


@dataclass(frozen=True, slots=True)
class _Running:
    supervisor: subprocess.Popen[bytes]
    sockets: Path
    access: Path


class EmbeddedServers:
    """Start and stop the private servers of a data directory; use it as a context manager.

    It blocks; from asyncio call it in a thread. `stop` waits for a `start` that is under way in
    another thread, so a cancelled start leaves nothing behind. Without either server it only
    holds the data directory's lock.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        postgres: bool = True,
        valkey: bool = True,
        programs: Programs | None = None,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._with_postgres = postgres
        self._with_valkey = valkey
        self._programs = programs
        self._mutex = threading.Lock()
        self._lock: BinaryIO | None = None
        self._running: _Running | None = None
        self._ended = False

    def __enter__(self) -> EmbeddedServers:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def sockets(self) -> Path:
        """Return the directory of the sockets while the servers run."""
        assert self._running is not None, "the embedded servers are not running"
        return self._running.sockets

    def database_url(self, user: str = LOGIN, database: str = DATABASE) -> str:
        """Return the URL of a database for a user, by default the one that a server logs in as."""
        return socket_url(self.sockets, user, database)

    def redis_url(self) -> str:
        """Return the URL of Valkey, with its password."""
        assert self._running is not None, "the embedded servers are not running"
        return valkey_url(self._running.sockets, self._running.access)

    def start(self) -> None:
        """Start both and wait until they answer.

        Raises: `DataDirectoryInUse`; `StartupFailed`: with what to do.
        """
        with self._mutex:
            if self._ended:
                return
            self._lock = _lock_data_dir(self._data_dir)
            if not (self._with_postgres or self._with_valkey):
                return
            try:
                placement = self._spawn()
            except OSError as exc:
                raise StartupFailed(f"cannot start the embedded servers: {exc}") from exc
            self._wait_until_ready(placement)
            if self._with_postgres:
                self._ensure_roles()

    def stop(self) -> None:
        """Stop both, wait for their end, let go of the data directory. Safe to call twice."""
        with self._mutex:
            self._ended = True
            if self._running is not None:
                _end(self._running.supervisor)
                self._running = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _spawn(self) -> Placement:
        with _supervisor_lock(self._data_dir) as lock:
            placement = place(self._data_dir, self._programs)
            _stop_leftover(placement.cluster / "postmaster.pid", placement.cluster)
            _stop_leftover(placement.valkey / "valkey.pid", placement.valkey)
            placement.take_over(placement.cluster)
            write_access(placement)
            if self._with_postgres:
                ensure_cluster(placement)
                record_home(self._data_dir, placement)
            sockets, temporary = make_socket_directory(placement)
            servers = []
            if self._with_postgres:
                servers.append(postgres_server(placement, sockets))
            if self._with_valkey:
                servers.append(valkey_server(placement, sockets))
            for server in servers:
                _trim(Path(server.log))
            spec = SupervisorSpec(servers, [str(sockets)] if temporary else [])
            with (placement.logs / _SUPERVISOR_LOG).open("wb") as log:
                supervisor = subprocess.Popen(
                    # -I -S: no site packages, which halves the time it takes to start.
                    [sys.executable, "-I", "-S", script(), to_argument(spec), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(lock.fileno(),),
                )
        self._running = _Running(supervisor, sockets, placement.access)
        return placement

    def _wait_until_ready(self, placement: Placement) -> None:
        assert self._running is not None
        supervisor, sockets = self._running.supervisor, self._running.sockets
        waiting: list[tuple[str, Path, Callable[[Path], bool]]] = []
        if self._with_postgres:
            waiting.append(("postgres", sockets / POSTGRES_SOCKET, postgres_answers))
        if self._with_valkey:
            waiting.append(("valkey", sockets / VALKEY_SOCKET, valkey_answers))
        deadline = time.monotonic() + _START_TIMEOUT_S
        while waiting := [server for server in waiting if not server[2](server[1])]:
            if supervisor.poll() is not None or time.monotonic() > deadline:
                raise StartupFailed(_why(placement.logs, [name for name, _, _ in waiting]))
            time.sleep(0.01)
        assert supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            supervisor.stdin.write(b"ready\n")
            supervisor.stdin.flush()

    def _ensure_roles(self) -> None:
        # In a thread with a loop of its own: the caller's loop may be running.
        with ThreadPoolExecutor(1) as thread:
            made = ensure_roles(self.database_url(SUPERUSER, MAINTENANCE))
            try:
                thread.submit(asyncio.run, made).result()
            except (OSError, asyncpg.PostgresError) as exc:
                raise StartupFailed(
                    f"the roles of the embedded database were not made: {exc}"
                ) from exc


def _lock_data_dir(data_dir: Path) -> BinaryIO:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if data_dir.stat().st_mode & 0o067:  # 0710 is what `placement` gives it under root
            data_dir.chmod(0o700)
        lock = (data_dir / "lock").open("ab")
    except OSError as exc:
        raise StartupFailed(f"cannot use the data directory {data_dir}: {exc.strerror}") from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise DataDirectoryInUse(
            f"another sluice process uses the data directory {data_dir}: stop it, or choose "
            "another with --data-dir"
        ) from None
    return lock


@contextlib.contextmanager
def _supervisor_lock(data_dir: Path) -> Iterator[BinaryIO]:
    """Lock once the supervisor of a killed process is done; who inherits the file keeps it."""
    with (data_dir / "supervisor.lock").open("ab") as file:
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StartupFailed(
                        "the servers of a killed sluice process do not stop: see the processes "
                        f"that hold {file.name}"
                    ) from None
                time.sleep(0.02)
        yield file


def _stop_leftover(pid_file: Path, directory: Path) -> None:
    """Stop the server that a pid file names, if it is ours; then drop the file.

    Ours means: it works in `directory`. Another process may have got the number since, and
    PostgreSQL would take that for a living server and refuse to start. Where there is no /proc
    to ask, nothing is touched.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        pid = int(pid_file.read_text().split(maxsplit=1)[0])
    except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
        return
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while _works_in(pid, directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT if time.monotonic() < deadline - 5 else signal.SIGKILL)
        if time.monotonic() > deadline:
            raise StartupFailed(f"process {pid} still uses {directory} and does not stop")
        time.sleep(0.05)
    pid_file.unlink(missing_ok=True)


def _works_in(pid: int, directory: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").samefile(directory)
    except OSError:
        return False


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    assert supervisor.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        supervisor.stdin.close()
    try:
        supervisor.wait(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()


def _trim(log: Path) -> None:
    """Keep at most one older log beside the present one."""
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.replace(log.with_name(f"{log.name}.1"))


def _why(logs: Path, names: list[str]) -> str:
    # The supervisor's log is new at each start; when it says anything, that is the reason.
    for path in (logs / _SUPERVISOR_LOG, *(logs / f"{name}.log" for name in names)):
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        if lines:
            return f"the embedded {path.stem} did not start: {lines[-1].strip()} (see {path})"
    return f"the embedded {' and '.join(names)} did not start: see {logs}"
