"""Processes that bill into one ledger and are killed at any moment: every request counts once."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.services.ledger.spool import Spool
from gateway.services.ledger.writer import LedgerWriter
from gateway.store.database import Database
from gateway.store.ledger import SqlLedger

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
NUM_KILLS = 8
BILLS_FOREVER = """
import asyncio, os, sys
from pathlib import Path
from gateway.services.ledger import spool
from gateway.services.ledger.writer import LedgerWriter, Pace
from gateway.services.ledger.spool import Spool
from gateway.store.database import Database
from gateway.store.ledger import SqlLedger
from tests.gateway.usage_rows import usage_row

# Most kills are to hit a transaction, or the moment after one; and a file goes as soon as it may.
spool._DROP_BYTES = 1
PACE = Pace(gather_s=0.001, pause_s=0.001, tidy_s=0.05)

async def bill():
    journal = Spool(Path(sys.argv[1]))
    ledger = SqlLedger(Database(sys.argv[2]))
    async with LedgerWriter(ledger, journal, pace=PACE).running():
        while True:
            row = usage_row()
            journal.append(row)
            os.write(1, f"{row.request_id}\\n".encode())
            await asyncio.sleep(0.001)

asyncio.run(bill())
"""


async def test_every_request_counts_once_after_kills(tmp_path: Path, database_url: str) -> None:
    """What two processes at a time had billed is in the ledger, once, and its sums agree."""
    draw = random.Random(0)
    command = [sys.executable, "-c", BILLS_FOREVER, str(tmp_path), database_url]
    running: list[subprocess.Popen[bytes]] = []
    told: list[str] = []
    for _ in range(NUM_KILLS):
        while len(running) < 2:
            running.append(_start(command))
        await asyncio.sleep(draw.random() * 0.3)
        told += _kill(running.pop(0))
    told += _kill(running.pop())

    database = Database(database_url)
    spool = Spool(tmp_path)
    async with LedgerWriter(SqlLedger(database), spool).running():
        pass
    assert spool.depth == 0
    spool.close()
    assert _left(tmp_path) == []
    async with database.platform() as connection:
        rows = [
            str(row)
            for row in await connection.scalars(text("SELECT request_id FROM usage_events"))
        ]
        requests = await connection.scalar(text("SELECT sum(requests) FROM usage_hourly"))
    await database.close()
    assert len(rows) == len(set(rows)) == requests
    assert set(told) <= set(rows)
    # What a process wrote last it may not have lived to tell.
    assert len(rows) - len(told) <= NUM_KILLS + 1
    assert len(told) > 100


def _left(directory: Path) -> list[str]:
    # A file that has no name yet when its process is killed is empty, and goes a minute later.
    return [path.name for path in directory.iterdir() if path.suffix != ".new"]


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.first = process.stdout.readline()  # type: ignore[attr-defined]
    return process


def _kill(process: subprocess.Popen[bytes]) -> list[str]:
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    with process:
        output = process.first + process.stdout.read()  # type: ignore[attr-defined]
    return [line.decode() for line in output.split(b"\n")[:-1]]
