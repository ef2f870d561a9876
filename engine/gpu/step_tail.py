"""What only some steps need between the logits and the draw: edits, and scores of what was drawn.

It goes launch by launch, and reads nothing back: the scores are copied to the host behind the step,
and put into words when it is collected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import MaskCosts, TokenLogprobs
from engine.gpu.program import Program
from engine.gpu.sampling_columns import SamplingColumns
from engine.gpu.staging import upload
from engine.kernels.operations import Operations
from engine.sampling.constraints import StepMasks, TokenMasks
from engine.sampling.logit_bias import BiasEntries
from engine.sampling.logprobs import LogprobRows, Scores, measure


@dataclass(frozen=True, slots=True)
class TailResult:
    """Hold what arrives on the host beside the tokens; nothing may read it before the step is over.

    `asked` and `scores` are None where no row asked for log-probabilities, `masks` where none has
    a constraint.
    """

    num_rows: int
    asked: LogprobRows | None = None
    scores: Scores | None = None
    bias: BiasEntries | None = None
    masks: StepMasks | None = None

    def take_drawn(self, slots: NDArray[np.int32], token_ids: NDArray[np.int32]) -> dict[int, str]:
        """Tell constraints what was drawn; returns the slots that they left no token, and why."""
        if self.masks is None:
            return {}
        failed = token_ids < 0
        self.masks.accept(token_ids, failed)
        return self.masks.unmet(slots, failed, self.bias)

    def mask_costs(self) -> MaskCosts | None:
        """Say what masks took of a processor."""
        return None if self.masks is None else self.masks.costs()

    def read(self, token_ids: NDArray[np.int32]) -> list[TokenLogprobs | None] | None:
        """Return the log-probabilities of the rows that asked."""
        if self.asked is None or self.scores is None:
            return None
        rows = self.asked.rows
        found: list[TokenLogprobs | None] = [None] * self.num_rows
        drawn = token_ids[rows].astype(np.int64)
        for row, one in zip(
            rows.tolist(), self.scores.read(drawn, self.asked.num_top), strict=True
        ):
            found[row] = one
        return found


class Tail:
    """Draw for steps with a row that asks for more than temperature and filters."""

    def __init__(self, operations: Operations, columns: SamplingColumns) -> None:
        self._operations = operations
        self._columns = columns

    @torch.inference_mode()
    def run(
        self, program: Program, slots: NDArray[np.int32], positions: NDArray[np.int32]
    ) -> TailResult | None:
        """Draw, or return None where the program's own draw will do."""
        columns = self._columns
        bias = columns.bias_entries(slots, positions)
        penalises = columns.penalises(slots)
        asked = columns.logprob_rows(slots)
        masks = columns.masks(slots)
        if bias is None and not penalises and asked is None and masks is None:
            return None
        device, arrays = program.logits.device, program.arrays
        # A copy: edits change logits in place, and log-probabilities are of the model's own.
        logits = program.logits[: program.bucket.num_rows].to(torch.float32, copy=True)
        raw = None if asked is None else logits[upload(asked.rows, device)]
        if bias is not None:
            _add_bias(logits, bias)
        if penalises:
            assert columns.penalties is not None
            self._operations.penalise(logits, columns.penalties, arrays.draw_slots)
        if masks is not None:
            # Made here, while the device computes the model.
            _hide(logits, masks.take())
        program.draw_from(logits)
        drawn = program.drawn
        if penalises:
            assert columns.penalties is not None
            self._operations.count(columns.penalties, arrays.draw_slots, drawn)
        if asked is None or raw is None:
            return TailResult(len(slots), bias=bias, masks=masks)
        chosen = drawn[upload(asked.rows, device)].clamp(min=0)
        scores = measure(raw, chosen, int(asked.num_top.max()))
        return TailResult(len(slots), asked, scores.map(to_host), bias, masks)


def to_host(tensor: Tensor) -> Tensor:
    """Copy behind everything that was launched, without waiting."""
    if tensor.device.type != "cuda":
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _hide(logits: Tensor, masks: TokenMasks) -> None:
    rows, words = upload(masks.rows, logits.device), upload(masks.words, logits.device)
    places = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (words[:, :, None] >> places & 1).view(len(rows), -1)[:, : logits.shape[-1]]
    logits[rows] = logits[rows].masked_fill_(allowed == 0, float("-inf"))


def _add_bias(logits: Tensor, entries: BiasEntries) -> None:
    index = upload(entries.rows * logits.shape[-1] + entries.token_ids, logits.device)
    logits.view(-1).index_add_(0, index, upload(entries.values, logits.device))
