"""Find out how many threads torch should compute with."""

from __future__ import annotations

import os

import torch

from engine.probe.race import ROUNDS, time_s


@torch.inference_mode()
def choose_num_threads() -> int:
    """Choose torch's threads: all cores but one, which the event loop needs, or fewer if faster."""
    most = max(1, len(os.sched_getaffinity(0)) - 1)
    candidates = sorted({1, max(1, most // 2), most})
    if len(candidates) == 1:
        return most
    weight = torch.ones(2048, 2048)
    x = torch.ones(8, 2048)
    best_s = {n: float("inf") for n in candidates}
    before = torch.get_num_threads()
    for _ in range(ROUNDS):
        for n in candidates:
            torch.set_num_threads(n)
            best_s[n] = min(best_s[n], time_s(lambda: x @ weight))
    torch.set_num_threads(before)
    # A thread more must pay for itself.
    return min(candidates, key=lambda n: (best_s[n] * (1 + 0.01 * n), n))
