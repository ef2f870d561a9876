"""The errors of this package.

    SchedulerError
    ├── Rejected         a request was not taken in
    └── UnknownPolicy    a configuration names a policy that does not exist

Their messages are fit for whoever sent the request or the configuration.
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


class UnknownPolicy(SchedulerError):
    """Choose one of `known`, or three of them for tenants, keys and requests: `vtc/vtc/edf`."""

    def __init__(self, policy: str, known: list[str]) -> None:
        super().__init__(
            f"There is no policy {policy!r}: choose one of {', '.join(known)}, "
            "or three for tenants, keys and requests, as in vtc/vtc/edf."
        )
        self.policy = policy
        self.known = known
