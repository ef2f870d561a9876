"""How much of a band that lends is due before a request."""

from __future__ import annotations

from scheduler.admission.deadline_lines import DeadlineLines
from scheduler.config import FairnessConfig
from scheduler.order import FairTree
from waiting import make_sequence, push


def test_what_is_due_earlier_counts_while_it_waits() -> None:
    """A request has before it what is due before it, and no longer once that has left."""
    tree, lines = FairTree(FairnessConfig(borrow_tokens=1_000.0)), DeadlineLines()
    early, late = make_sequence(10, ttft_s=1.0), make_sequence(20, ttft_s=9.0)
    for sequence in (early, late):
        push(tree, sequence)
        lines.joined(tree.bands["DEFAULT"], sequence, 0.0)
    newcomer = make_sequence(30, ttft_s=5.0)
    assert lines.before(tree.bands["DEFAULT"], newcomer, 0.0) == 10.0
    lines.left(early)
    assert lines.before(tree.bands["DEFAULT"], newcomer, 0.0) == 0.0
