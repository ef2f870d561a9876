"""Waiting for a batch: what is shown, what is survived, and how it ends."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial

import pytest

from gateway.cli.batches.patience import Patience
from gateway.cli.batches.progress import BatchProgress, Pace
from gateway.cli.batches.waiting import wait_for
from gateway.cli.exits import CliError, Exit, NoAnswer
from gateway.cli.public_client import PublicAccess, PublicApi, TryLater
from tests.gateway.cli.admin_server import sluice_here
from tests.gateway.cli.batches.fake_api import FakeApi, counts, refusal

SLUICE = (sys.executable, "-c", "from gateway.cli.main import main; main()")


@dataclass
class Clock:
    """Let time pass only where somebody sleeps."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    @property
    def patience(self) -> Patience:
        return Patience(give_up_s=60, sleep=self.sleep, clock=lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("status", "ended"),
    [("failed", "has failed"), ("expired", "has expired"), ("cancelled", "was cancelled")],
)
def test_a_batch_that_was_not_completed_is_a_failure(api: FakeApi, status: str, ended: str) -> None:
    """Each other end is exit code 1, with what was wrong and what there is to have."""
    error = {"code": "duplicate_custom_id", "message": "It is used twice.", "line": 7}
    errors = {"object": "list", "data": [error] * 7}
    files = {"output_file_id": "file-8", "error_file_id": "file-9"}
    api.add_batch(status=status, errors=errors, **files)
    done = sluice_here("batch", "watch", "batch_1", **api.env)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"sluice: batch_1 {ended}\n" in done.stderr
    assert done.stderr.count("line 7: duplicate_custom_id: It is used twice.") == 5
    assert "and more: sluice batch show batch_1" in done.stderr
    assert "answered before: sluice batch download batch_1\n" in done.stderr
    assert "what was not: sluice batch download batch_1 --errors\n" in done.stderr


def test_the_end_as_json(api: FakeApi) -> None:
    """With --json the batch as it ended is on stdout, whichever end it was."""
    api.add_batch(status="expired")
    done = sluice_here("batch", "watch", "batch_1", "--json", **api.env)
    assert (done.returncode, json.loads(done.stdout)["status"]) == (1, "expired")


def test_no_such_batch(api: FakeApi) -> None:
    """An id that is not there is exit code 3, and a hostile one leads nowhere else."""
    for name in ("batch_9", "../files"):
        done = sluice_here("batch", "watch", name, **api.env)
        assert done.returncode == 3, done.stderr


def test_an_empty_id_is_wrong_usage(api: FakeApi) -> None:
    """What a submission that failed has left in a variable names no batch, and not all of them."""
    assert sluice_here("batch", "watch", "", **api.env).returncode == 2
    assert api.asked == []


def test_a_server_that_is_away_for_a_while_is_survived(api: FakeApi) -> None:
    """Restarts and overload are waited for, longer each time; that is said once."""
    clock = Clock()
    batch = api.add_batch(status="in_progress")
    api.batches[batch["id"]]["status"] = "completed"
    late = refusal(429, "Slow down.", **{"retry-after": "9"})
    api.refusals = [refusal(503, "The server stops."), refusal(502, "Bad gateway."), late]
    with PublicApi(PublicAccess(api.url, api.key)) as public:
        ended = wait_for(public, batch | {"status": "in_progress"}, patience=clock.patience)
    assert ended["status"] == "completed"
    assert clock.slept == [0.5, 0.5, 1.0, 9.0]


def test_nothing_listens_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that cannot be reached is asked again until patience ends; that names the way on."""
    clock = Clock()
    batch = {"id": "batch_1", "status": "in_progress"}
    with (
        PublicApi(PublicAccess("http://127.0.0.1:1/v1", "k")) as public,
        pytest.raises(CliError, match="'sluice batch watch batch_1' goes on waiting"),
    ):
        wait_for(public, batch, patience=clock.patience)
    assert clock.now >= 60
    assert capsys.readouterr().err.count("trying again") == 1


def test_what_will_not_mend_itself_is_not_waited_for(api: FakeApi) -> None:
    """A key that is no longer good ends the watching at once."""
    clock = Clock()
    with (
        PublicApi(PublicAccess(api.url, "sluice_live_other")) as public,
        pytest.raises(CliError, match="Incorrect API key") as refused,
    ):
        wait_for(public, api.add_batch(status="in_progress"), patience=clock.patience)
    assert (refused.value.code, len(clock.slept)) == (Exit.AUTH, 1)


def test_patience_says_that_the_server_is_back() -> None:
    """Who waited is told of both: that nothing came, and that it does again."""
    clock, said = Clock(), list[str]()
    answers = iter([NoAnswer("gone"), TryLater("busy", retry_after_s=3), None])

    def ask() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "here"

    assert clock.patience.ask(ask, said.append) == "here"
    assert (said, clock.slept) == (["gone; trying again", "the server answers again"], [0.5, 3])


def test_an_interrupt_leaves_the_batch_running(api: FakeApi) -> None:
    """Ctrl-C ends the watching with 130 and names how to go on; the batch is not touched."""
    api.add_batch(status="in_progress", request_counts=counts(1, 0, 4))
    process = subprocess.Popen(
        [*SLUICE, "batch", "watch", "batch_1"],
        env=api.env,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background is not interrupted, nor is what that starts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "batch_1 in_progress 1/4\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; batch_1 runs on" in said
    assert "sluice batch watch batch_1" in said
    assert "sluice batch cancel batch_1" in said
    assert {line.partition(" ")[0] for line in api.asked} == {"GET"}


def show(stream: io.StringIO, *looks: dict[str, object], step_s: float = 1.0) -> str:
    """Show a batch's states, so long after each other, and return what was written."""
    clock = Clock()
    with BatchProgress(stream=stream, clock=lambda: clock.now) as progress:
        for look in looks:
            progress.show({"id": "batch_1", "status": "in_progress"} | look)
            clock.sleep(step_s)
    return stream.getvalue()


def test_a_terminal_has_a_bar_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Done, failed, total, tokens, time left, cost and what was saved are drawn over and over."""
    monkeypatch.setenv("COLUMNS", "90")
    usage = {"input_tokens": 1_000, "output_tokens": 200}
    money = {"cost_nano_usd": 2_340_000_000, "saved_nano_usd": 2_340_000_000}
    written = show(
        Terminal(),
        {"request_counts": counts(0, 0, 4_000)},
        {"request_counts": counts(900, 100, 4_000), "usage": usage | money},
        step_s=60,
    )
    assert written.count("\n") == 1
    last = written.split("\r")[-1].rstrip()
    assert last == (
        "in_progress ██░░░░░░░ 1,000/4,000, 100 failed, 3:00 left, $2.34, $2.34 saved, 1.2k tokens"
    )


def test_a_wide_bar_is_cut_where_the_terminal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line never wraps: it could not be drawn over."""
    monkeypatch.setenv("COLUMNS", "40")
    look = {"request_counts": counts(1, 0, 2), "paused_for": "budget"}
    assert max(map(len, show(Terminal(), look, look).split("\r"))) < 41


def test_elsewhere_a_line_a_change() -> None:
    """A log gets a state's change at once, counts now and then, and nothing twice."""
    looks = [{"request_counts": counts(n, 0, 40)} for n in range(15)]
    paused = {"request_counts": counts(14, 0, 40), "paused_for": "budget"}
    written = show(io.StringIO(), *looks, paused, paused)
    assert written.splitlines() == [
        "batch_1 in_progress 0/40",
        "batch_1 in_progress 10/40",
        "batch_1 in_progress 14/40, paused: the tenant's budget is used up",
    ]


def test_the_time_left_is_that_of_the_last_two_minutes() -> None:
    """A pace that changed is soon the pace that is told; a pause and an end have none."""
    pace = Pace()
    batch = {"request_counts": counts(0, 0, 1_000)}
    assert pace.left_s(batch, 0) is None
    for minute in range(1, 6):
        batch = {"request_counts": counts(100 * minute, 0, 1_000)}
        assert pace.left_s(batch, 60 * minute) == pytest.approx(60 * (10 - minute))
    slow = {"request_counts": counts(501, 0, 1_000)}
    assert pace.left_s(slow, 1_000) is not None
    assert pace.left_s(slow | {"paused_for": "budget"}, 1_060) is None
    batch = {"request_counts": counts(502, 0, 1_000)}
    assert pace.left_s(batch, 1_300) == pytest.approx(498 * 240)
    assert pace.left_s({"request_counts": counts(1_000, 0, 1_000)}, 1_400) is None
