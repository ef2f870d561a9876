"""`sluice batch list`, `show`, `cancel` and `download`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.batches.output_file import save
from gateway.cli.exits import NoAnswer
from tests.gateway.cli.admin_server import sluice_here
from tests.gateway.cli.batches.fake_api import FakeApi, counts

SLUICE = (sys.executable, "-c", "from gateway.cli.main import main; main()")


def run(api: FakeApi, *arguments: object) -> subprocess.CompletedProcess[str]:
    return sluice_here("batch", *map(str, arguments), **api.env)


@pytest.fixture
def ended(api: FakeApi) -> FakeApi:
    """Have a batch with answers and errors."""
    api.files |= {"file-8": b'{"custom_id": "a"}\n', "file-9": b'{"custom_id": "b"}\n'}
    files = {"output_file_id": "file-8", "error_file_id": "file-9"}
    api.add_batch(status="completed", request_counts=counts(1, 1, 2), **files)
    return api


def test_a_list_has_the_newest_first(api: FakeApi) -> None:
    """A row each with its counts and time, as many as asked for, whatever a page holds."""
    for number in range(130):
        api.add_batch(status="completed", request_counts=counts(number, 0, number))
    done = run(api, "list", "--limit", 120, "--no-header")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [f"batch_{n}" for n in range(130, 10, -1)]
    assert rows[0] == [
        *("batch_130", "completed", "-", "/v1/completions"),
        *("129", "129", "0", "2027-01-15T08:00:00Z"),
    ]
    assert "There are more" in done.stderr
    assert len(json.loads(run(api, "list", "--json").stdout)) == 20


def test_an_empty_list_says_so(api: FakeApi) -> None:
    """A tenant without batches gets a note, and no row."""
    done = run(api, "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "There are no batches.\n")


def test_a_batch_is_shown_with_what_holds_it_up(api: FakeApi) -> None:
    """A field a line, times in UTC; a pause, errors and costs are said in words."""
    error = {"code": "invalid_json_line", "message": "It is no JSON.", "line": 3, "param": None}
    batch = api.add_batch(
        status="in_progress",
        paused_for="key_revoked",
        errors={"object": "list", "data": [error]},
        usage={"cost_nano_usd": 1_234_567_890, "saved_nano_usd": 1_000},
    )
    done = run(api, "show", batch["id"])
    lines = done.stdout.splitlines()
    assert "created_at\t2027-01-15T08:00:00Z" in lines
    assert "request_counts.total\t0" in lines
    assert lines[-1] == "error\tline 3: invalid_json_line: It is no JSON."
    assert done.stderr.splitlines() == [
        "paused: the key that submitted it is revoked",
        "$1.23, $0.000001 saved",
    ]
    assert json.loads(run(api, "show", batch["id"], "--json").stdout) == batch


def test_a_batch_is_cancelled(api: FakeApi) -> None:
    """Its id is on stdout and what became of it beside."""
    api.add_batch(status="in_progress")
    done = run(api, "cancel", "batch_1")
    assert (done.stdout, done.stderr) == ("batch_1\n", "It is cancelling.\n")
    assert api.batches["batch_1"]["status"] == "cancelling"
    assert json.loads(run(api, "cancel", "batch_1", "--json").stdout)["id"] == "batch_1"


def test_answers_and_errors_are_saved(ended: FakeApi, tmp_path: Path) -> None:
    """To a file, into a directory, to stdout; the path is alone on stdout."""
    named = tmp_path / "answers.jsonl"
    done = run(ended, "download", "batch_1", "--output", named)
    assert (done.returncode, done.stdout) == (0, f"{named}\n"), done.stderr
    assert named.read_bytes() == ended.files["file-8"]
    within = tmp_path / "batch_1_errors.jsonl"
    saved = run(ended, "download", "batch_1", "--errors", "--output", tmp_path, "--json")
    assert json.loads(saved.stdout) == {
        **{"file_id": "file-9", "path": str(within)},
        "size_bytes": len(ended.files["file-9"]),
    }
    assert within.read_bytes() == ended.files["file-9"]
    piped = subprocess.run(
        [*SLUICE, "batch", "download", "batch_1", "--output", "-"],
        env=ended.env,
        capture_output=True,
    )
    assert piped.stdout == ended.files["file-8"], piped.stderr


def test_the_file_has_the_batchs_name(
    ended: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --output it is saved where the command is run."""
    monkeypatch.chdir(tmp_path)
    assert run(ended, "download", "batch_1").stdout == "batch_1_output.jsonl\n"
    assert (tmp_path / "batch_1_output.jsonl").read_bytes() == ended.files["file-8"]


def test_a_file_is_not_written_over(ended: FakeApi, tmp_path: Path) -> None:
    """A file that is there stays, exit code 5, unless it may be replaced."""
    path = tmp_path / "mine.jsonl"
    path.write_text("mine")
    done = run(ended, "download", "batch_1", "--output", path)
    assert (done.returncode, done.stdout, path.read_text()) == (5, "", "mine")
    assert "exists" in done.stderr
    assert run(ended, "download", "batch_1", "--output", path, "--force").returncode == 0
    assert path.read_bytes() == ended.files["file-8"]


def test_half_a_file_is_not_left_behind(tmp_path: Path) -> None:
    """A download that is cut off leaves no temporary name, and what it was to replace."""
    path = tmp_path / "answers.jsonl"
    path.write_text("whole")

    def cut() -> Iterator[bytes]:
        yield b"half"
        assert path.read_text() == "whole"
        raise NoAnswer("gone")

    with pytest.raises(NoAnswer):
        save(cut(), path, force=True)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(path.name, "whole")]


@pytest.mark.parametrize(
    ("status", "flags", "code", "said"),
    [
        ("in_progress", (), 5, "'sluice batch watch batch_1' waits"),
        ("completed", (), 3, "sluice batch download batch_1 --errors"),
        ("cancelled", ("--errors",), 0, ""),
    ],
)
def test_what_is_not_there_cannot_be_saved(
    ended: FakeApi, tmp_path: Path, status: str, flags: tuple[str, ...], code: int, said: str
) -> None:
    """A batch that runs has no files yet; one whose requests all failed has only errors."""
    ended.batches["batch_1"] |= {"status": status, "output_file_id": None}
    if status == "in_progress":
        ended.batches["batch_1"]["error_file_id"] = None
    done = run(ended, "download", "batch_1", "--output", tmp_path / "x", *flags)
    assert done.returncode == code
    assert said in done.stderr
