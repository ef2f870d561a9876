"""Who holds a slot of the engine, and what changes of them with each token.

`RunningSet` has the sequences; their counts and newest tokens (`DecodingRows`), when the next ones
are due (`Pace`) and how much KV they hold and will are arrays by slot. `Rotation` says whose
turn it is where not all of them run. `RowKernel` has compiled loops over these arrays.
"""

from scheduler.running.decode_rows import DecodingRows, Slots
from scheduler.running.holdings import KEPT
from scheduler.running.in_flight_times import InFlightTimes
from scheduler.running.pace import Pace
from scheduler.running.rotation import PLACE_BITS, Rotation
from scheduler.running.row_kernel import Ledger, RowKernel
from scheduler.running.running_set import RunningSet

__all__ = [
    "KEPT",
    "PLACE_BITS",
    "DecodingRows",
    "InFlightTimes",
    "Ledger",
    "Pace",
    "Rotation",
    "RowKernel",
    "RunningSet",
    "Slots",
]
