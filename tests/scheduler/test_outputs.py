"""What a step has for its requests, as columns and one by one."""

from __future__ import annotations

import numpy as np

from scheduler.outputs import DrawnTokens, Outputs
from scheduler.request import FinishReason, RequestOutput


def test_columns_make_the_outputs_of_their_rows() -> None:
    """Iterating gives an output a row, and what was added before and behind in its place."""
    counts = np.array([[7, 8], [0, 16], [1, 2]], dtype=np.intc)
    first = RequestOutput("x", (), FinishReason.CANCELLED, 0, 3)
    last = RequestOutput("y", (4,), FinishReason.LENGTH, 0, 5)
    outputs = Outputs([first])
    report = Outputs(DrawnTokens(["a", "b"], *counts))
    report.add([last])
    report.add([])
    outputs.add(report)
    rows = [RequestOutput("a", (7,), None, 0, 1), RequestOutput("b", (8,), None, 16, 2)]
    assert list(outputs) == [first, *rows, last]
    assert list(outputs)[1].token_ids == (7,)
    assert isinstance(list(outputs)[1], RequestOutput)
    assert len(outputs) == 4
    assert outputs
    assert not Outputs()
    assert [len(part) for part in outputs.parts] == [1, 2, 1]
