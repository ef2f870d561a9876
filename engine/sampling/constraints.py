"""Masks of the tokens that constraints allow: a request's grammar, kept by slot.

A sequence goes on with a copy of its request's constraint, which learns each token that is drawn;
one that comes back after a preemption learns again what it had drawn. The masks of a step are asked
for before the model runs and needed after it, so on a CPU a thread makes them meanwhile; whoever
waits for a device anyway makes them in between. What makes a mask should give up the interpreter.

Failures: a constraint that fails, or leaves nothing that may be drawn, ends its own row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import NewSequence, TokenConstraint
from engine.errors import ConstraintFailed
from engine.sampling.logit_bias import BiasEntries

logger = logging.getLogger(__name__)

_ALL = np.int32(-1)
_EMPTIED = "the constraint and the other parameters together allow no token"


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Hold which tokens rows of a batch may draw.

    `rows`: [num_masked]. `words`: [num_masked, ceil(vocab_size / 32)], a bit a token from the
    lowest. `failed`: rows whose constraint failed, and why; they are masked by nothing. `took_s`:
    what each row took of a processor, [num_masked].
    """

    rows: NDArray[np.int64]
    words: NDArray[np.int32]
    failed: dict[int, str]
    took_s: tuple[float, ...] = ()

    def emptied(self, bias: BiasEntries | None, vocab_size: int) -> set[int]:
        """Find the rows that are left no token, by their masks and by biases of minus infinity."""
        allowed = unpacked(self.words, vocab_size)
        if bias is not None:
            place = {row: at for at, row in enumerate(self.rows.tolist())}
            for at in np.flatnonzero(np.isneginf(bias.values)).tolist():
                if (masked := place.get(bias.rows.item(at))) is not None:
                    allowed[masked, bias.token_ids[at]] = False
        return set(self.rows[~allowed.any(axis=1)].tolist())


def unpacked(words: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Spread masks to an entry a token, [num_masked, vocab_size]."""
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return bits.view(np.bool_)


def hide(logits: Tensor, masks: TokenMasks, *, native: bool = False) -> None:
    """Set to minus infinity what masks forbid, on a CPU, in place; [num_rows, vocab_size]."""
    rows = torch.from_numpy(masks.rows)
    if native:
        torch.ops.sluice.mask_logits(logits, rows, torch.from_numpy(masks.words))
        return
    forbidden = torch.from_numpy(~unpacked(masks.words, logits.shape[-1]))
    logits[rows] = logits[rows].masked_fill_(forbidden, float("-inf"))


@dataclass(slots=True)
class _Held:
    """Hold a constraint, and the token that it has not been told of yet, or -1."""

    constraint: TokenConstraint
    failure: str | None = None
    newest: int = -1


@dataclass(slots=True)
class StepMasks:
    """Hold the constrained rows of a step, from before its masks are made until it has drawn."""

    vocab_size: int
    _held: list[tuple[int, _Held]]
    _making: Future[TokenMasks] | None = None
    _masks: TokenMasks | None = None

    def begin(self, pool: ThreadPoolExecutor) -> None:
        """Make the masks on a thread."""
        self._making = pool.submit(self._make)

    def take(self) -> TokenMasks:
        """Return the masks, made here or, if that was begun, on the thread."""
        if self._masks is None:
            self._masks = self._make() if self._making is None else self._making.result()
        return self._masks

    def accept(
        self, token_ids: NDArray[np.int64] | NDArray[np.int32], failed: NDArray[np.bool_]
    ) -> None:
        """Note which tokens the rows of the step drew that did not fail.

        Constraints are told of them where the next masks are made, beside the model.
        """
        is_drawn, drawn = (~failed).tolist(), token_ids.tolist()
        for row, held in self._held:
            if is_drawn[row]:
                held.newest = drawn[row]

    def unmet(
        self, slots: NDArray[np.int32], failed: NDArray[np.bool_], bias: BiasEntries | None
    ) -> dict[int, str]:
        """Say which slots have no token by their constraints, and why, of a step that has drawn."""
        masks = self.take()
        reasons = masks.failed
        if any(failed[row] for row, _ in self._held):
            emptied = dict.fromkeys(masks.emptied(bias, self.vocab_size), _EMPTIED)
            reasons = emptied | reasons
        return {slots.item(row): reason for row, reason in reasons.items()}

    def costs_s(self, slots: NDArray[np.int32]) -> dict[int, float]:
        """Say by slot what masks took of a processor, of a step that has drawn."""
        masks = self.take()
        return dict(zip(slots[masks.rows].tolist(), masks.took_s, strict=True))

    def _make(self) -> TokenMasks:
        rows = np.array([row for row, _ in self._held], np.int64)
        words = np.empty((len(rows), -(-self.vocab_size // 32)), np.int32)
        address, size = words.ctypes.data, words.strides[0]
        failed, meter = {}, _Meter()
        for at, (row, held) in enumerate(self._held):
            _fill(held, words[at], address + at * size)
            if held.failure is not None:
                failed[row] = held.failure
                words[at] = _ALL
            meter.next_row()
        return TokenMasks(rows, words, failed, tuple(meter.took_s))


class _Meter:
    """Measure what rows take of a processor, one after the other.

    That of others which it is shared with is not the row's. But to ask for it costs a call of the
    system, as much as a mask that is cheap: a row that ends quickly took no more than the time that
    passed, and only after a longer one the processor's is asked for.
    """

    QUICK_S = 5e-5

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self._used_s, self._since_s = time.thread_time(), time.perf_counter()
        # Of the rows since the processor's time was asked for.
        self._quick_s = 0.0

    def next_row(self) -> None:
        """Note what the row has taken that ends now."""
        now_s = time.perf_counter()
        took_s, self._since_s = now_s - self._since_s, now_s
        if took_s <= self.QUICK_S:
            self._quick_s += took_s
        else:
            used_s = time.thread_time()
            took_s = min(max(used_s - self._used_s - self._quick_s, 0.0), took_s)
            self._used_s, self._quick_s, self._since_s = used_s, 0.0, time.perf_counter()
        self.took_s.append(took_s)


def _fill(held: _Held, words: NDArray[np.int32], address: int) -> None:
    """Tell a constraint of its newest token, and have it say what may come next."""
    if held.newest >= 0 and held.failure is None:
        _advance(held, (held.newest,))
        held.newest = -1
    if held.failure is None:
        try:
            held.constraint.fill_mask(words, address)
        except Exception as error:
            held.failure = _reason(error)


class ConstraintTable:
    """Keep the constraints of the slots that have one."""

    def __init__(self, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._held: dict[int, _Held] = {}

    def admit(self, sequence: NewSequence) -> None:
        """Take a sequence's constraint to where its tokens are."""
        constraint = sequence.params.constraint
        if constraint is None:
            self._held.pop(sequence.slot, None)
            return
        held = self._held[sequence.slot] = _Held(constraint.copy())
        if drawn := sequence.token_ids[sequence.num_prompt_tokens :].tolist():
            _advance(held, drawn)

    def step(self, slots: NDArray[np.int32]) -> StepMasks | None:
        """Note the constrained rows of a batch that draws for `slots`; None where there is none."""
        if not self._held:
            return None
        found = [
            (row, self._held[slot]) for row, slot in enumerate(slots.tolist()) if slot in self._held
        ]
        return StepMasks(self._vocab_size, found) if found else None

    def release(self, slots: Sequence[int]) -> None:
        """Forget the constraints of slots."""
        if self._held:
            for slot in slots:
                self._held.pop(slot, None)

    def clear(self) -> None:
        """Forget every slot."""
        self._held.clear()


def _advance(held: _Held, token_ids: Sequence[int]) -> None:
    try:
        held.constraint.accept(token_ids)
    except Exception as error:
        held.failure = _reason(error)


def _reason(error: Exception) -> str:
    """Say why a constraint failed; a fault in one that it did not foresee harms no other row."""
    if isinstance(error, ConstraintFailed):
        return str(error)
    logger.error("a constraint failed", exc_info=error)
    return f"the constraint failed: {type(error).__name__}"
