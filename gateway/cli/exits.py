"""The exit codes, and the error that ends a command with one line and one of them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5
    INTERRUPTED = 130


class CliError(Exception):
    """Print the message on stderr and exit with `code`."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code
