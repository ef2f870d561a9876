"""Masks of the tokens that constraints allow: a request's grammar, kept by slot.

A sequence goes on with a copy of its request's constraint, which learns each token that is drawn.
To learn a thousand again takes hundreds of milliseconds for some grammars, in which all rows wait:
so the copy of a sequence that is preempted is kept while it is to come back, as many as there are
slots; beyond them, and after a fault, what was drawn is learnt again. The masks of a step are asked
for before the model runs and needed after it, so on a CPU a thread makes them meanwhile; whoever
waits for a device anyway makes them in between. What makes a mask should give up the interpreter.

Failures: a constraint that fails, or leaves nothing that may be drawn, ends its own row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import MaskCosts, NewSequence, SamplingParams, TokenConstraint
from engine.errors import ConstraintFailed
from engine.sampling.logit_bias import BiasEntries

logger = logging.getLogger(__name__)

_ALL = np.int32(-1)
_EMPTIED = "the constraint and the other parameters together allow no token"


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Hold which tokens rows of a batch may draw.

    `rows`: [num_masked]. `words`: [num_masked, ceil(vocab_size / 32)], a bit a token from the
    lowest. `failed`: rows whose constraint failed, and why; they are masked by nothing. `costs`:
    what they took, None where that was not measured.
    """

    rows: NDArray[np.int64]
    words: NDArray[np.int32]
    failed: dict[int, str]
    costs: MaskCosts | None = None

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
    """Hold a constraint of a sequence, which was told of so many tokens, and the one that it is to
    be told of, or -1."""

    constraint: TokenConstraint
    request_id: str
    params: ref[SamplingParams]
    num_told: int = 0
    failure: str | None = None
    newest: int = -1

    def tell(self, token_ids: Sequence[int]) -> None:
        """Let the constraint learn tokens. Raises: what it does."""
        self.constraint.accept(token_ids)
        self.num_told += len(token_ids)


class StepMasks:
    """Hold the constrained rows of a step, from before its masks are made until it has drawn.

    `rows` of the batch, which draw for `slots`, [num_masked].
    """

    def __init__(
        self,
        vocab_size: int,
        rows: NDArray[np.int64],
        slots: NDArray[np.int32],
        held: list[_Held],
    ) -> None:
        self._vocab_size = vocab_size
        self._rows = rows
        self._slots = slots
        self._held = held
        self._made: TokenMasks | BaseException | None = None
        # Held while a thread makes them.
        self._making: Lock | None = None
        self._waited_s = 0.0

    def begin(self) -> None:
        """Note that a thread is to `make` them, for which `take` waits."""
        self._making = Lock()
        self._making.acquire()

    def make(self) -> None:
        """Make the masks, on the thread."""
        assert self._making is not None, "begun before"
        try:
            self._made = self._make()
        except BaseException as error:
            self._made = error
        finally:
            self._making.release()

    def take(self) -> TokenMasks:
        """Return the masks, made here or, if that was begun, on the thread."""
        if self._made is None:
            if self._making is None:
                self._made = self._make()
            elif not self._making.acquire(blocking=False):
                began_s = time.perf_counter()
                self._making.acquire()
                self._waited_s = time.perf_counter() - began_s
        assert self._made is not None, "made, or why not"
        if isinstance(self._made, BaseException):
            raise self._made
        return self._made

    def costs(self) -> MaskCosts | None:
        """Say what the masks took, and for how long they were waited for."""
        costs = self.take().costs
        if costs is None or not self._waited_s:
            return costs
        return replace(costs, waited_s=self._waited_s)

    def accept(
        self, token_ids: NDArray[np.int64] | NDArray[np.int32], failed: NDArray[np.bool_]
    ) -> None:
        """Note which tokens the rows of the batch drew, and which failed.

        Constraints are told of them where the next masks are made, beside the model.
        """
        drawn = token_ids[self._rows]
        drawn[failed[self._rows]] = -1
        for held, token_id in zip(self._held, drawn.tolist(), strict=True):
            held.newest = token_id

    def unmet(
        self, slots: NDArray[np.int32], failed: NDArray[np.bool_], bias: BiasEntries | None
    ) -> dict[int, str]:
        """Say which slots have no token by their constraints, and why, of a step that has drawn."""
        masks = self.take()
        reasons = masks.failed
        if failed[self._rows].any():
            emptied = dict.fromkeys(masks.emptied(bias, self._vocab_size), _EMPTIED)
            reasons = emptied | reasons
        return {slots.item(row): reason for row, reason in reasons.items()}

    def _make(self) -> TokenMasks:
        words = np.empty((len(self._held), -(-self._vocab_size // 32)), np.int32)
        address, size = words.ctypes.data, words.strides[0]
        failed, meter = {}, _Meter()
        for at, held in enumerate(self._held):
            if held.failure is None:
                _fill(held, words[at], address + at * size)
            if held.failure is not None:
                failed[self._rows.item(at)] = held.failure
                words[at] = _ALL
            meter.next_row()
        took_s = meter.took_s
        costs = MaskCosts(self._slots, np.array(took_s), sum(took_s))
        return TokenMasks(self._rows, words, failed, costs)


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
    newest, held.newest = held.newest, -1
    try:
        if newest >= 0:
            held.tell((newest,))
        held.constraint.fill_mask(words, address)
    except Exception as error:
        held.failure = _reason(error)


class ConstraintTable:
    """Keep the constraints of the slots that have one."""

    def __init__(self, *, vocab_size: int, num_slots: int) -> None:
        self._vocab_size = vocab_size
        self._held: dict[int, _Held] = {}
        self._is_held = np.zeros(num_slots, np.bool_)
        # Of the preempted, by request, the oldest first; they go when nobody has the request.
        self._kept: dict[str, tuple[_Held, ref[SamplingParams]]] = {}

    def admit(self, sequence: NewSequence) -> None:
        """Take a sequence's constraint to where its tokens are."""
        self.release((sequence.slot,))
        params = sequence.params
        if params.constraint is None:
            return
        held = self._held[sequence.slot] = self._found(sequence, params.constraint)
        self._is_held[sequence.slot] = True
        if drawn := sequence.token_ids[sequence.num_prompt_tokens + held.num_told :].tolist():
            try:
                held.tell(drawn)
            except Exception as error:
                held.failure = _reason(error)

    def _found(self, sequence: NewSequence, constraint: TokenConstraint) -> _Held:
        params, request_id = ref(sequence.params), sequence.request_id
        kept, _ = self._kept.pop(request_id, (None, None))
        if kept is None or kept.params() is not sequence.params:
            return _Held(constraint.copy(), request_id, params)
        # What it was yet to be told is among what was drawn.
        return _Held(kept.constraint, request_id, params, kept.num_told)

    def step(self, slots: NDArray[np.int32]) -> StepMasks | None:
        """Note the constrained rows of a batch that draws for `slots`; None where there is none."""
        if not self._held:
            return None
        rows = self._is_held[slots].nonzero()[0]
        if not len(rows):
            return None
        masked = slots[rows]
        held = [self._held[slot] for slot in masked.tolist()]
        return StepMasks(self._vocab_size, rows, masked, held)

    def release(self, slots: Sequence[int], preempted: Sequence[str] = ()) -> None:
        """Forget the constraints of slots, but for those of requests that will come back."""
        if not self._held:
            return
        for slot in slots:
            held = self._held.pop(slot, None)
            if held is not None:
                self._is_held[slot] = False
                if held.failure is None and held.request_id in preempted:
                    self._keep(held)

    def _keep(self, held: _Held) -> None:
        params, kept, request_id = held.params(), self._kept, held.request_id
        if params is None:
            return
        kept[request_id] = held, ref(params, lambda _: kept.pop(request_id, None))
        if len(kept) > len(self._is_held):
            del kept[next(iter(kept))]

    def clear(self) -> None:
        """Forget every slot, and whatever was kept: what was drawn may be drawn again."""
        self.release(list(self._held))
        self._kept.clear()


def _reason(error: Exception) -> str:
    """Say why a constraint failed; a fault in one that it did not foresee harms no other row."""
    if isinstance(error, ConstraintFailed):
        return str(error)
    logger.error("a constraint failed", exc_info=error)
    return f"the constraint failed: {type(error).__name__}"
