"""`sluice batch submit`: what is refused before it is sent, and what is sent."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cli.admin_server import sluice_here
from tests.gateway.cli.batches.fake_api import FakeApi, counts, refusal

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
TWO = "".join(json.dumps(LINE | {"custom_id": name}) + "\n" for name in "ab").encode()


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """Write two requests."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(TWO)
    return path


def submit(api: FakeApi, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return sluice_here("batch", "submit", *map(str, arguments), **(api.env | env))


def test_the_id_is_alone_on_stdout(api: FakeApi, requests: Path) -> None:
    """The file is sent as it is, and the batch goes where its first line does."""
    done = submit(api, requests, "--metadata", "run=nightly", "--metadata", "by=a=b")
    assert (done.returncode, done.stdout) == (0, "batch_1\n"), done.stderr
    assert api.files["file-1"] == TWO
    assert api.created_with == [
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {"run": "nightly", "by": "a=b"},
        }
    ]


def test_what_is_said_is_sent(api: FakeApi, requests: Path) -> None:
    """A window and an endpoint that are named are the batch's; --json prints all of it."""
    flags = ("--completion-window", "1h", "--endpoint", "/v1/chat/completions", "--json")
    shown = json.loads(submit(api, requests, *flags).stdout)
    assert (shown["completion_window"], shown["endpoint"]) == ("1h", "/v1/chat/completions")


def test_standard_input_is_a_file(api: FakeApi) -> None:
    """`-` is sent like any file, also where it comes through a pipe without an end in sight."""
    command = [sys.executable, "-c", "from gateway.cli.main import main; main()"]
    command += ["batch", "submit", "-"]
    done = subprocess.run(command, input=TWO, env=api.env, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"batch_1\n"), done.stderr
    assert api.files["file-1"] == TWO


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, 3, "no file"),
        (b"", 2, "is empty"),
        (b"\n \r\n", 2, "only blank lines"),
        (b"hello\n", 2, "line 1 is not JSON"),
        (b"\n[1]\n", 2, "line 2 is no JSON object"),
        (b"\xff\xfe{}", 2, "line 1 is not UTF-8"),
        (b"\x1f\x8b\x08", 2, "unpack the file first"),
        (b"[" * 100_000, 2, "line 1 is not JSON"),
        (json.dumps(LINE | {"custom_id": 1}).encode(), 2, "no usable 'custom_id'"),
        (json.dumps({"custom_id": "a", "url": "/v1/completions"}).encode(), 2, "no 'body'"),
    ],
)
def test_a_wrong_file_is_not_sent(
    api: FakeApi, tmp_path: Path, content: bytes | None, code: int, said: str
) -> None:
    """What can be seen at once to be no batch is refused in one line that says why."""
    path = tmp_path / "wrong.jsonl"
    if content is not None:
        path.write_bytes(content)
    done = submit(api, path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1
    assert api.asked == []


def test_too_large_a_file_is_not_sent(api: FakeApi, tmp_path: Path) -> None:
    """More than a batch's input may have is refused before a byte of it is read."""
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(200_000_001)
    done = submit(api, path)
    assert (done.returncode, api.asked) == (2, [])
    assert "200 MB" in done.stderr


def test_a_byte_order_mark_and_blank_lines_are_passed_over(api: FakeApi, tmp_path: Path) -> None:
    """The first request is found behind them; the file is sent as it is."""
    path = tmp_path / "windows.jsonl"
    content = b"\xef\xbb\xbf" + json.dumps(LINE).encode() + b"\r\n"
    path.write_bytes(content)
    assert submit(api, path).returncode == 0
    assert api.files["file-1"] == content


def test_an_upload_is_streamed(api: FakeApi, tmp_path: Path) -> None:
    """A file that is sent is in memory by pieces only."""
    path = tmp_path / "large.jsonl"
    size_bytes = 48 << 20
    with path.open("wb") as file:
        file.write(json.dumps(LINE).encode() + b"\n")
        file.truncate(size_bytes)
    tracemalloc.start()
    try:
        done = submit(api, path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.returncode == 0, done.stderr
    assert api.uploaded_bytes > size_bytes
    assert peak_bytes < size_bytes // 3


@pytest.mark.parametrize(("status", "code"), [(400, 2), (429, 1)])
def test_a_refused_batch_leaves_no_file(
    api: FakeApi, requests: Path, status: int, code: int
) -> None:
    """Where the server takes the file and not the batch, the file is removed again."""
    accepts_file: Any = api._routes
    api.refusals = [accepts_file, refusal(status, "It is too much.")]
    done = submit(api, requests)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == "sluice: It is too much.\n"
    assert api.files == {}


def test_a_batch_is_made_once(api: FakeApi, requests: Path) -> None:
    """An answer that was lost on its way is asked for again, and makes no second batch."""
    create: Any = api._routes

    async def lost(scope: Any, receive: Any, send: Any) -> None:
        async def to_nowhere(message: Any) -> None:
            pass

        await create(scope, receive, to_nowhere)
        await refusal(502, "Bad gateway.")(scope, receive, send)

    upload: Any = api._routes
    api.refusals = [upload, lost]  # type: ignore[list-item]
    done = submit(api, requests)
    assert (done.returncode, done.stdout) == (0, "batch_1\n")
    assert "Bad gateway.; trying again" in done.stderr
    assert len(api.batches) == 1


def test_waiting_shows_each_change(api: FakeApi, requests: Path) -> None:
    """With --wait the id comes first, then a line a change on stderr; a whole batch is exit 0."""
    usage = {"input_tokens": 40, "output_tokens": 2, "total_tokens": 42}
    money = {"cost_nano_usd": 1_500_000, "saved_nano_usd": 1_500_000}
    api.life = [
        {"status": "in_progress", "request_counts": counts(0, 0, 2)},
        {"status": "completed", "request_counts": counts(1, 1, 2), "usage": usage | money},
    ]
    done = submit(api, requests, "--wait")
    assert (done.returncode, done.stdout) == (0, "batch_1\n")
    assert done.stderr.splitlines() == [
        "batch_1 validating 0/2",
        "batch_1 in_progress 0/2",
        "batch_1 completed 2/2, 1 failed, $0.0015, $0.0015 saved, 42 tokens",
        "The answers: sluice batch download batch_1",
        "1 of 2 failed: sluice batch download batch_1 --errors",
    ]


def test_waiting_as_json(api: FakeApi, requests: Path) -> None:
    """With --wait and --json stdout is the batch as it ended, alone."""
    api.life = [{"status": "completed", "request_counts": counts(2, 0, 2)}]
    done = submit(api, requests, "--wait", "--json")
    assert json.loads(done.stdout)["status"] == "completed"


def test_a_note_without_a_value_is_wrong_usage(api: FakeApi, requests: Path) -> None:
    """`--metadata` takes NAME=VALUE alone, and nothing is sent before that is known."""
    assert submit(api, requests, "--metadata", "nightly").returncode == 2
    assert api.asked == []


@pytest.mark.parametrize(
    ("env", "code", "said"),
    [
        ({"SLUICE_API_KEY": "", "OPENAI_API_KEY": ""}, 4, "SLUICE_API_KEY is not set"),
        ({"SLUICE_API_KEY": "", "OPENAI_API_KEY": "sk-proj-1"}, 4, "no key of Sluice's"),
        ({"SLUICE_API_KEY": "sluice_live_…"}, 4, "is no key"),
        ({"SLUICE_API_KEY": "sluice_live_wrong"}, 4, "Incorrect API key provided."),
        ({"SLUICE_BASE_URL": "nonsense"}, 2, "is no address"),
        ({"SLUICE_BASE_URL": "http://127.0.0.1:1/v1"}, 1, "does not answer"),
        ({"SLUICE_BASE_URLS": "http://127.0.0.1:1/v1"}, 2, "did you mean SLUICE_BASE_URL?"),
    ],
)
def test_without_a_way_in_it_says_so(
    api: FakeApi, requests: Path, env: dict[str, str], code: int, said: str
) -> None:
    """No key, somebody else's, a wrong one, no address, no server: one line and its exit code."""
    done = submit(api, requests, **env)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert api.files == {}


def test_a_key_of_ours_may_be_where_openais_clients_look(api: FakeApi, requests: Path) -> None:
    """`OPENAI_API_KEY` is used where it is a key of Sluice's and no other is set."""
    done = submit(api, requests, SLUICE_API_KEY="", OPENAI_API_KEY=api.key)
    assert done.returncode == 0, done.stderr
