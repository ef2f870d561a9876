"""What steps take and how long outputs get, learned as they come.

`StepModel` prices steps, `LengthModel` (or other `Lengths`) tells lengths, `Estimates` says by them
what is expected of a request, and `MachineTime` what it costs its tenant.
"""

from scheduler.learn.estimates import Estimates
from scheduler.learn.length_model import LengthModel, Lengths
from scheduler.learn.machine_time import MachineTime
from scheduler.learn.step_model import StepModel

__all__ = ["Estimates", "LengthModel", "Lengths", "MachineTime", "StepModel"]
