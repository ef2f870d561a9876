"""Who is refused at once, and who is dropped because its time is over.

`Admission` decides, by how long the queue may get and how long it takes to drain in the policies'
own order. `Expiry` knows whose time runs out next. `least_pace_s` says what may be promised at all.
"""

from scheduler.admission.admission import Admission
from scheduler.admission.expiry import Expiry
from scheduler.admission.promises import least_pace_s

__all__ = ["Admission", "Expiry", "least_pace_s"]
