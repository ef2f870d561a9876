"""What the log writes of exceptions: where they came from, and nothing that they quote."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import threading

import pytest

from gateway.telemetry import logs

CANARY = "cAnArY"


def failing() -> None:
    try:
        raise KeyError(CANARY)
    except KeyError as exc:
        raise ValueError(f"could not read {CANARY}") from exc


def written(form: logging.Formatter) -> str:
    """Format what is logged of a bug whose text quotes what a client sent."""
    try:
        failing()
    except ValueError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, __file__, 1, "%s broke", ("it",), sys.exc_info()
        )
    return form.format(record)


def test_a_traceback_quotes_nothing() -> None:
    """It names the exceptions and the places, in either form."""
    text, document = written(logs._HumanLines()), json.loads(written(logs._JsonLines()))
    assert CANARY not in text
    assert text.startswith("ERROR x: it broke\nTraceback")
    assert text.endswith("ValueError from KeyError")
    assert "in failing" in text
    assert CANARY not in json.dumps(document)
    assert document["exception"] == "ValueError from KeyError"
    assert document["message"] == "it broke"
    assert any("in failing" in frame for frame in document["frames"])


def test_an_error_of_the_system_says_what_it_is() -> None:
    """Its number and meaning are the system's words; the name of a file may not be ours."""
    error = FileNotFoundError(2, "No such file or directory", CANARY)
    assert logs.without_text(error) == "FileNotFoundError (2: No such file or directory)"


def test_a_long_chain_ends() -> None:
    """Exceptions that name each other as their cause are told of a few times."""
    one, two = ValueError(), TypeError()
    one.__cause__, two.__cause__ = two, one
    assert logs.without_text(one).count("ValueError") == 4


async def _failing_task() -> None:
    raise ValueError(CANARY)


@pytest.mark.parametrize("form", [logs._HumanLines(), logs._JsonLines()])
def test_what_asyncio_tells_of_a_lost_exception_quotes_nothing(
    form: logging.Formatter, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message shows the task, and in it the exception."""

    async def lose() -> None:
        task = asyncio.create_task(_failing_task())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()

    asyncio.run(lose())
    [record] = caplog.records
    assert CANARY in record.getMessage()
    text = form.format(record)
    assert CANARY not in text
    assert "Task exception was never retrieved" in text
    assert "in _failing_task" in text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Python would print the exception with its text."""
    before = threading.excepthook
    threading.excepthook = logs._thread_failed
    try:
        thread = threading.Thread(target=failing)
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    [record] = caplog.records
    assert CANARY not in logs._HumanLines().format(record)


@pytest.fixture
def root() -> logging.Logger:
    return logging.getLogger()


def test_the_form_can_be_changed_once_settings_are_read(root: logging.Logger) -> None:
    """There is one handler, whatever was there before."""
    before, level, hook = root.handlers[:], root.level, threading.excepthook
    root.setLevel(logging.WARNING)
    logging.getLogger(logs._REQUESTS).setLevel(logging.NOTSET)
    assert not logs.takes_requests()
    try:
        logs.log_to_stderr("human")
        logs.log_to_stderr("json")
        [handler] = root.handlers
        assert logs.takes_requests()
        assert isinstance(handler.formatter, logs._JsonLines)
    finally:
        root.handlers[:] = before
        threading.excepthook = hook
        root.setLevel(level)
        logging.getLogger(logs._REQUESTS).setLevel(logging.NOTSET)
