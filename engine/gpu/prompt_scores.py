"""Prompts that are scored: which tokens of a step score which, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import NewSequence, StepPlan, TokenLogprobs
from engine.gpu.staging import upload
from engine.gpu.step_tail import to_host
from engine.sampling.logprobs import Scores, measure


@dataclass(slots=True)
class ScoredPrompts:
    """Hold the prompt tokens that one step scores, each by the logits of the token before it.

    `slots`, `lens`: whose they are and how many, [num_prompts]. `logit_rows`: on the device;
    `token_ids`, `num_top`: all [num_scored].
    """

    slots: list[int]
    lens: list[int]
    logit_rows: Tensor
    token_ids: NDArray[np.int64]
    num_top: NDArray[np.int64]
    scores: Scores | None = None

    def measure(self, logits: Tensor) -> ScoredPrompts:
        """Score them by their logits, [num_scored, vocab_size]; nothing is read back."""
        tokens = upload(self.token_ids, logits.device)
        width = int(self.num_top.max(initial=0))
        self.scores = measure(logits.float(), tokens, width).map(to_host)
        return self

    def read(self) -> tuple[dict[int, list[TokenLogprobs]], list[int]]:
        """Return the scores by slot, and the slots where one is not finite."""
        assert self.scores is not None, "a step is read after it was run"
        scored = self.scores.read(self.token_ids, self.num_top)
        found: dict[int, list[TokenLogprobs]] = {}
        begin = 0
        for slot, n in zip(self.slots, self.lens, strict=True):
            found[slot] = scored[begin : begin + n]
            begin += n
        bad = [
            slot
            for slot, logprobs in found.items()
            if not all(math.isfinite(one.logprob) for one in logprobs)
        ]
        return found, bad


class PromptScores:
    """Remember the prompts of the slots that ask for their scores."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Slot → its prompt, and how many alternatives.
        self._asked: dict[int, tuple[NDArray[np.int64], int]] = {}

    def admit(self, sequences: Sequence[NewSequence]) -> None:
        """Note who asks."""
        for sequence in sequences:
            self._asked.pop(sequence.slot, None)
            num_top = sequence.params.prompt_logprobs
            if num_top is not None:
                prompt = np.array(sequence.token_ids[: sequence.num_prompt_tokens], np.int64)
                self._asked[sequence.slot] = (prompt, num_top)

    def release(self, slots: Sequence[int]) -> None:
        """Forget slots."""
        if self._asked:
            for slot in slots:
                self._asked.pop(slot, None)

    def clear(self) -> None:
        """Forget every slot."""
        self._asked.clear()

    def rows_of(self, plan: StepPlan) -> ScoredPrompts | None:
        """Find what a plan scores: the prompt tokens after those that its slices compute."""
        if not self._asked:
            return None
        slots, lens, rows, token_ids, num_top = [], [], [], [], []
        first = len(plan.decodes)
        for piece in plan.slices:
            asked = self._asked.get(piece.slot)
            if asked is not None:
                prompt, top = asked
                n = max(0, min(piece.start + piece.n_tokens, len(prompt) - 1) - piece.start)
                slots.append(piece.slot)
                lens.append(n)
                rows.append(first + np.arange(n, dtype=np.int32))
                token_ids.append(prompt[piece.start + 1 : piece.start + 1 + n])
                num_top.append(np.full(n, top, np.int64))
            first += piece.n_tokens
        if not slots:
            return None
        return ScoredPrompts(
            slots,
            lens,
            upload(np.concatenate(rows), self._device),
            np.concatenate(token_ids),
            np.concatenate(num_top),
        )
