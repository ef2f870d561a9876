"""The exit codes, and the error that ends a command with one line and one of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5
    INTERRUPTED = 130


_OF_STATUS: Final = {
    400: Exit.USAGE,
    401: Exit.AUTH,
    403: Exit.AUTH,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
}


def exit_of(status: int) -> Exit:
    """Return the exit code of a refusal with this HTTP status."""
    return _OF_STATUS.get(status, Exit.FAILED)


class CliError(Exception):
    """Print the message on stderr and exit with `code`.

    `answer` is what a server said beside its message: the JSON of a conflict.
    """

    def __init__(
        self, message: str, code: Exit = Exit.FAILED, *, answer: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.answer = answer or {}


class Served(SystemExit):
    """Exit from a server, which has closed all that was to be closed."""


class NoAnswer(CliError):
    """The server was not reached, or did not say what became of what was sent."""
