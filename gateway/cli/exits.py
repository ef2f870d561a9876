"""The exit codes, and the error that ends a command with one line and one of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5
    INTERRUPTED = 130


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


class NoAnswer(CliError):
    """The server was not reached, or did not say what became of what was sent."""
