"""The spool: what survives a kill, what is taken over, and what is put aside."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.services.ledger import spool as spool_module
from gateway.services.ledger.spool import REFUSED_NAME, Spool
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
APPENDS_FOREVER = """
import sys
from pathlib import Path
from gateway.services.ledger.spool import Spool
from tests.gateway.usage_rows import usage_row
spool = Spool(Path(sys.argv[1]))
while True:
    row = usage_row()
    spool.append(row)
    sys.stdout.write(f"{row.request_id}\\n")
    sys.stdout.flush()
"""


def files(directory: Path, suffix: str = ".spool") -> list[Path]:
    return sorted(directory.glob(f"*{suffix}"))


def drain(spool: Spool, limit: int = 500) -> list[object]:
    taken: list[object] = []
    while rows := spool.pending(limit):
        taken += rows
        spool.confirm(len(rows))
    return taken


def test_rows_come_back_as_they_went_in_and_in_order(tmp_path: Path) -> None:
    """What was appended is pending, oldest first, until it is confirmed."""
    spool = Spool(tmp_path)
    rows = [usage_row(output_tokens=n, ttft_ms=None if n % 2 else 0.1 + n) for n in range(7)]
    for row in rows:
        spool.append(row)
    assert spool.pending(3) == rows[:3]
    assert spool.pending(3) == rows[:3]
    spool.confirm(2)
    assert (spool.depth, spool.pending(100)) == (5, rows[2:])
    assert list(spool.unledgered()) == rows[2:]
    spool.confirm(5)
    assert (spool.depth, spool.pending(100), list(spool.unledgered())) == (0, [], [])
    spool.close()
    assert files(tmp_path) == []


def test_arrived_is_set_exactly_while_there_are_rows(tmp_path: Path) -> None:
    """Who waits for rows is woken by the first and sleeps after the last."""
    spool = Spool(tmp_path)
    assert not spool.arrived.is_set()
    spool.append(usage_row())
    spool.append(usage_row())
    assert spool.arrived.is_set()
    spool.pending(1)
    spool.confirm(1)
    assert spool.arrived.is_set()
    spool.pending(1)
    spool.confirm(1)
    assert not spool.arrived.is_set()
    spool.close()


def test_a_killed_process_loses_no_row(tmp_path: Path) -> None:
    """After SIGKILL in the middle of appending, each row whose append had returned is there."""
    command = [sys.executable, "-c", APPENDS_FOREVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline().strip() for _ in range(200)]
        writer.send_signal(signal.SIGKILL)
        told += [line.strip() for line in writer.stdout if line.endswith("\n")]
    spool = Spool(tmp_path)
    found = [str(row.request_id) for row in spool.unledgered()]
    # One row at most was written and not told any more.
    assert found[: len(told)] == told
    assert len(found) <= len(told) + 1
    assert spool.depth == len(found)
    assert len(drain(spool)) == len(found)
    spool.close()
    assert files(tmp_path) == []


def test_the_files_of_a_living_process_are_left_alone(tmp_path: Path) -> None:
    """Two spools share a directory; what one leaves, the other takes over when it tidies."""
    one, other = Spool(tmp_path), Spool(tmp_path)
    rows = [usage_row(), usage_row()]
    one.append(rows[0])
    other.append(rows[1])
    other.tidy()
    assert (other.depth, list(other.unledgered())) == (1, [rows[1]])
    one.close()
    other.tidy()
    assert other.depth == 2
    # Its own come first: a request that has just ended is not to wait for the dead.
    assert drain(other) == [rows[1], rows[0]]
    other.close()
    assert files(tmp_path) == []


def test_a_torn_last_row_is_skipped_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a row at the end of a file is told in the log, and those before it are read."""
    spool = Spool(tmp_path)
    rows = [usage_row() for _ in range(3)]
    for row in rows:
        spool.append(row)
    spool.close()
    (path,) = files(tmp_path)
    os.truncate(path, path.stat().st_size - 40)
    with caplog.at_level(logging.WARNING):
        spool = Spool(tmp_path)
    assert "half written" in caplog.text
    assert drain(spool) == rows[:2]
    spool.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nth", [0, 1, 4])
@pytest.mark.parametrize("damage", [b"X", b"\n", b"\0"], ids=["letter", "newline", "zero"])
def test_a_damaged_row_costs_itself_alone(
    tmp_path: Path, nth: int, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong byte in any row is told loudly, the others are read, and the file is put aside."""
    spool = Spool(tmp_path)
    rows = [usage_row() for _ in range(5)]
    for row in rows:
        spool.append(row)
    spool.close()
    (path,) = files(tmp_path)
    content = path.read_bytes()
    line = content.split(b"\n")[0]
    at = nth * (len(line) + 1) + 50
    path.write_bytes(content[:at] + damage + content[at + 1 :])
    spool = Spool(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert drain(spool, limit=2) == rows[:nth] + rows[nth + 1 :]
    assert "is damaged" in caplog.text
    assert spool.depth == 0
    assert not spool.arrived.is_set()
    spool.close()
    assert files(tmp_path) == []
    assert len(files(tmp_path, ".corrupt")) == 1


def test_a_file_goes_when_it_is_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drained file is removed once it is large, and the next row begins another."""
    monkeypatch.setattr(spool_module, "_DROP_BYTES", 2000)
    spool = Spool(tmp_path)
    spool.append(usage_row())
    drain(spool)
    assert len(files(tmp_path)) == 1
    for _ in range(5):
        spool.append(usage_row())
    drain(spool)
    assert files(tmp_path) == []
    assert spool.size_bytes == 0
    row = usage_row()
    spool.append(row)
    assert drain(spool) == [row]
    spool.close()


def test_a_drained_file_goes_with_age(tmp_path: Path) -> None:
    """A small file that is through is removed when the spool is tidied a minute later."""
    clock = FakeClock()
    spool = Spool(tmp_path, clock=clock)
    spool.append(usage_row())
    spool.tidy()
    clock.now_s += 61
    spool.tidy()
    assert len(files(tmp_path)) == 1
    drain(spool)
    spool.tidy()
    assert files(tmp_path) == []
    spool.close()


def test_a_file_that_never_got_a_name_goes_with_age(tmp_path: Path) -> None:
    """What a process left that was killed while it made a file is removed, a minute later."""
    path = tmp_path / "a.new"
    path.touch()
    clock = FakeClock()
    clock.now_s = path.stat().st_mtime + 1
    spool = Spool(tmp_path, clock=clock)
    assert path.exists()
    clock.now_s += 60
    spool.tidy()
    assert not path.exists()
    spool.close()


def test_rows_that_never_stop_go_to_further_files(tmp_path: Path) -> None:
    """A file that has reached its size is followed by another and removed when it is through."""
    spool = Spool(tmp_path, segment_bytes=2000)
    rows = [usage_row() for _ in range(20)]
    for row in rows:
        spool.append(row)
    assert len(files(tmp_path)) == 5
    assert spool.pending(11) == rows[:11]
    spool.confirm(11)
    assert len(files(tmp_path)) == 3
    assert drain(spool, limit=4) == rows[11:]
    spool.close()


def test_fill_grows_to_full(tmp_path: Path) -> None:
    """Fill is what the files take of the bound; a full spool takes rows all the same."""
    spool = Spool(tmp_path, max_bytes=10_000)
    assert spool.fill == 0.0
    spool.append(usage_row())
    assert spool.fill == spool.size_bytes / 10_000 > 0.04
    assert not spool.is_full
    for _ in range(30):
        spool.append(usage_row())
    assert (spool.fill, spool.is_full, spool.depth) == (1.0, True, 31)
    spool.close()


def test_a_disk_that_takes_nothing_costs_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that cannot be written are held in memory, and the spool calls itself full."""
    spool = Spool(tmp_path / "spool")
    rows = [usage_row() for _ in range(4)]
    spool.append(rows[0])
    # A file that cannot be written, and a directory where none can be made.
    os.close(spool._own[0].descriptor)
    spool._own[0].descriptor = os.open(files(tmp_path / "spool")[0], os.O_RDONLY)
    hidden = (tmp_path / "spool").rename(tmp_path / "hidden")
    with caplog.at_level(logging.ERROR):
        spool.append(rows[1])
        spool.append(rows[2])
    assert caplog.text.count("held in memory") == 1
    assert spool.is_full
    hidden.rename(tmp_path / "spool")
    spool.append(rows[3])
    assert spool.depth == 4
    assert list(spool.unledgered()) == [rows[0], rows[3], rows[1], rows[2]]
    assert drain(spool, limit=3) == [rows[0], rows[3], rows[1], rows[2]]
    assert not spool.is_full
    spool.close()


def test_what_was_confirmed_before_a_kill_may_come_again(tmp_path: Path) -> None:
    """A process that died after confirming leaves rows to its successor: never fewer."""
    spool = Spool(tmp_path)
    rows = [usage_row() for _ in range(3)]
    for row in rows:
        spool.append(row)
    spool.pending(2)
    spool.confirm(2)
    for segment in spool._own:
        segment.close()  # as a kill would: nothing is removed
    assert drain(Spool(tmp_path)) == rows


def test_a_row_put_aside_can_be_read_by_an_operator(tmp_path: Path) -> None:
    """It stands in a file of JSON lines that no start takes for a part of the spool."""
    spool = Spool(tmp_path)
    row = usage_row(model="m\n")
    spool.put_aside(row)
    spool.put_aside(row)
    lines = (tmp_path / REFUSED_NAME).read_text().splitlines()
    assert len(lines) == 2
    assert str(row.request_id) in lines[0]
    spool.close()
    assert Spool(tmp_path).depth == 0


async def test_what_was_written_is_synced(tmp_path: Path) -> None:
    """Syncing leaves nothing dirty, also while a file goes that is being synced."""
    spool = Spool(tmp_path)
    async with spool.syncing():
        spool.append(usage_row())
        assert spool._own[0].is_dirty
        await spool.sync()
        assert not spool._own[0].is_dirty
        spool.append(usage_row())
    assert not spool._own[0].is_dirty
    spool.close()


class FakeClock:
    now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s
