"""What this machine computes fastest, found out at start.

Each question is a race of a few milliseconds between the real candidates. Whatever the answer,
results differ by rounding at most.
"""

from engine.probe.bfloat16 import bfloat16_wins
from engine.probe.layouts import lay_out
from engine.probe.threads import choose_num_threads

__all__ = ["bfloat16_wins", "choose_num_threads", "lay_out"]
