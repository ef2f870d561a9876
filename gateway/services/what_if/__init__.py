"""What the last minutes would have been under other policies, replayed in a child process."""

from gateway.services.what_if.question import MAX_MINUTES, MAX_REQUESTS
from gateway.services.what_if.service import Job, JobState, WhatIf

__all__ = ["MAX_MINUTES", "MAX_REQUESTS", "Job", "JobState", "WhatIf"]
