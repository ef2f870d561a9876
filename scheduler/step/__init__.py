"""What a step computes, and what its results do.

The core composes with `step.composer`, keeps what is out in `step.in_flight` and takes what comes
back to `step.results`. Those three stand on `scheduler.lifecycle`, which stands on what is
re-exported here; so they are imported from their own modules.
"""

from scheduler.step.limits import StepLimits
from scheduler.step.shared_prefix import Shared, SharedPrefix

__all__ = ["Shared", "SharedPrefix", "StepLimits"]
