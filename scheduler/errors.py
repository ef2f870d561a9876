"""The errors of this package.

    SchedulerError
    └── Rejected    a request was not taken in

Its message is fit for the caller who sent the request.
"""

from __future__ import annotations

from scheduler.request import RejectCode


class SchedulerError(Exception):
    """Catch this to catch whatever the scheduler raises on purpose."""


class Rejected(SchedulerError):
    """Do what `code` asks for: send less, or come back after `retry_after_s`."""

    def __init__(self, reason: str, *, code: RejectCode, retry_after_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.retry_after_s = retry_after_s
