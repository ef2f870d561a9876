"""What steps take and how long outputs get, learned as they come.

`StepModel` prices steps, `LengthModel` (or other `Lengths`) tells lengths, and `Estimates` says by
them what is expected of a request.
"""

from scheduler.learn.estimates import Estimates
from scheduler.learn.length_model import LengthModel, Lengths
from scheduler.learn.step_model import StepModel

__all__ = ["Estimates", "LengthModel", "Lengths", "StepModel"]
