"""How the log is written: a line an event, for people or as JSON, and nothing of what was sent.

An exception's text is not ours: a library's may quote the prompt that it choked on. So a traceback
is written as where it happened and which exceptions they were, without their texts; of an error of
the operating system its number and meaning, which are its own.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

logger = logging.getLogger(__name__)

_encode: Final = msgspec.json.Encoder().encode
_MAX_CAUSES: Final = 8
_REQUESTS: Final = "gateway.requests"


def log_to_stderr(form: Literal["human", "json"]) -> None:
    """Have everything that is logged written to standard error; may be called again."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _HumanLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_REQUESTS).setLevel(logging.INFO)
    threading.excepthook = _thread_failed
    # Anyone can send malformed HTTP; a line for each would be theirs to fill the log with.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def takes_requests() -> bool:
    """Tell whether requests are to have lines: where the log is ours, not that of who embeds us."""
    return logging.getLogger(_REQUESTS).isEnabledFor(logging.INFO)


def without_text(exc: BaseException) -> str:
    """Name an exception and the ones before it, the last first, without what they say."""
    return " from ".join(_named(one) for one in _chain(exc))


def frames_of(exc: BaseException) -> list[str]:
    """Return where an exception came from, the outermost call first."""
    return [
        f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        for frame in traceback.extract_tb(exc.__traceback__)
    ]


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        logger.error("a thread failed", exc_info=args.exc_value)


def _message(record: logging.LogRecord) -> str:
    """Return what was logged; asyncio adds what it was about, exceptions with their texts."""
    message = record.getMessage()
    return message.partition("\n")[0] if record.name == "asyncio" else message


class _HumanLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname} {record.name}: {_message(record)}"
        # What another formatter has made of its exception is not looked at.
        exc = record.exc_info[1] if record.exc_info else None
        if exc is None:
            return line
        frames = "".join(f"\n  {frame}" for frame in frames_of(exc))
        return f"{line}\nTraceback (most recent call last):{frames}\n{without_text(exc)}"


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "at": f"{at}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": "log",
            "logger": record.name,
            "message": _message(record),
        }
        exc = record.exc_info[1] if record.exc_info else None
        if exc is not None:
            line["exception"], line["frames"] = without_text(exc), frames_of(exc)
        return _encode(line).decode()


def _chain(exc: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _named(exc: BaseException) -> str:
    kind = type(exc)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    if isinstance(exc, OSError) and exc.errno is not None:
        return f"{name} ({exc.errno}: {exc.strerror})"
    return name
