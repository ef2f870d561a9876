"""PostgreSQL's own programs, which the wheel brings: `pg_dump` and `pg_restore`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gateway.errors import BackupRefused
from gateway.store.backup.copying import write_chunks
from gateway.store.backup.manifest import Entry
from gateway.store.placement import installed_programs
from gateway.store.postgres_server import ENVIRONMENT

_CHUNK_BYTES: Final = 1 << 20
# For a table that is being changed, as a migration does: a backup that waits holds up others.
_LOCK_WAIT: Final = "10s"
_NICE: Final = 10


def dump(url: str, snapshot: str, target: Path) -> Entry:
    """Dump a snapshot that is held. It blocks. Raises: `BackupRefused`, `OSError`."""
    program = str(installed_programs().postgres_bin / "pg_dump")
    options = ["--format=custom", f"--snapshot={snapshot}", f"--lock-wait-timeout={_LOCK_WAIT}"]
    with _running([program, *options, f"--dbname={url}"], "pg_dump") as process:
        assert process.stdout is not None
        stdout = process.stdout
        return write_chunks(iter(lambda: stdout.read(_CHUNK_BYTES), b""), target)


def load(dumped: Path, url: str) -> None:
    """Load a dump into an empty database, all of it or nothing. It blocks.

    What is in it runs with the rights of the URL's user. Raises: `BackupRefused`, `OSError`.
    """
    program = str(installed_programs().postgres_bin / "pg_restore")
    options = ["--single-transaction", "--exit-on-error", "--no-owner", f"--dbname={url}"]
    with _running([program, *options, str(dumped)], "pg_restore"):
        pass


@contextmanager
def _running(command: list[str], name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program behind what serves; on leaving, wait for its end, and end it on a failure."""
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=told, env=ENVIRONMENT
        )
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        try:
            with process:
                yield process
                process.wait()
        except BaseException:
            process.kill()
            raise
        if process.returncode:
            told.seek(0)
            lines = told.read().decode(errors="replace").strip().splitlines()
            said = lines[0] if lines else f"exit status {process.returncode}"
            raise BackupRefused(f"{name} failed: {said}")
