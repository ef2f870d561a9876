"""How numbers get from the host to the device without either waiting for the other.

Two pinned buffers take turns: while the copy of one is under way, the other is filled. A buffer is
filled again only once its copy, two steps ago, is done, which an event says. All copies go in the
one stream that computes, so what a step reads cannot be overwritten while it runs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Staging:
    """Upload up to `num_words` int32 words a step to `words`, which stays where it is."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        self.words = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._on_gpu = device.type == "cuda"
        self._hosts = [
            torch.zeros(num_words, dtype=torch.int32, pin_memory=self._on_gpu) for _ in range(2)
        ]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def begin(self) -> NDArray[np.int32]:
        """Return the buffer to fill for the next step."""
        self._turn ^= 1
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        host: NDArray[np.int32] = self._hosts[self._turn].numpy()
        return host

    def upload(self, num_words: int) -> None:
        """Send the first words of what was filled."""
        host = self._hosts[self._turn]
        self.words[:num_words].copy_(host[:num_words], non_blocking=True)
        if self._on_gpu:
            # torch types this constructor not at all.
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied[self._turn] = event
            event.record()


def upload(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """Send an array of any size, for what does not come with every step.

    torch keeps pinned memory until the copies out of it are done.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return tensor.clone()
    return tensor.pin_memory().to(device, non_blocking=True)
