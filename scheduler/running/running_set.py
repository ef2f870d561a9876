"""The sequences that hold a slot of the engine.

Slots are rows of the engine's state table. What happens to them between two plans is collected
here and told to the engine with the next plan: that plan's steps come after all earlier ones on
the engine's single stream, so a slot or block may be given to another as soon as it is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from engine.native.row_library import load_rows
from scheduler.facts import PreemptionCause
from scheduler.request import Band
from scheduler.running.decode_rows import DecodingRows
from scheduler.running.holdings import Holdings
from scheduler.running.in_flight_times import InFlightTimes
from scheduler.running.kv_growth import KvGrowth
from scheduler.running.pace import Pace
from scheduler.running.prefilling_rows import PrefillingRows
from scheduler.running.rotation import PLACE_BITS
from scheduler.running.row_kernel import RowKernel
from scheduler.sequence import NO_SLOT, Sequence, Status
from scheduler.watch.step_times import StepTimes


class RunningSet:
    """Hold up to `max_num_rows` sequences: those that prefill and those that decode.

    `max_num_rows` may be lowered, and raised again to what it was at first, before a `clear`.

    Those that decode are `online_decodes`, but for those of the batch band, the `batch_decodes`,
    which a step takes along where it has room. All are dicts for their order and for removal in
    O(1); the values mean nothing. What many rows are asked for in each step is in arrays by slot:
    the counts and tokens of who decodes in `decode_rows`, when they are due in `pace`, whose turn
    it is of those that prefill in `prefilling_rows`, and what all rows hold and will in
    `kv_growth`. `kernel` has compiled loops over them, where they are built and may be used.
    `num_steps` were planned, `step_times` has when they came back, and `in_flight_times` when the
    others will.
    """

    def __init__(self, max_num_rows: int, *, compiled: bool = True) -> None:
        self.max_num_rows = max_num_rows
        self.prefilling: dict[Sequence, None] = {}
        self.online_decodes: dict[Sequence, None] = {}
        self.batch_decodes: dict[Sequence, None] = {}
        self.prefilling_rows = PrefillingRows(max_num_rows)
        self.decode_rows = DecodingRows(max_num_rows)
        self.pace = Pace(max_num_rows)
        self.kv_growth = KvGrowth(max_num_rows)
        library = load_rows() if compiled else None
        self.kernel: RowKernel | None = None
        if library is not None:
            self.kernel = RowKernel(library, self.decode_rows, self.pace, self.kv_growth)
        self.holdings = Holdings()
        self._in_slots: dict[int, Sequence] = {}
        self._free_slots: list[int] = []
        self._released: list[int] = []
        self._preempted: list[str] = []
        self.num_steps = 0
        self.step_times = StepTimes()
        self.in_flight_times = InFlightTimes()
        self._of_band: list[dict[Sequence, None]] = [{} for _ in Band]
        self.clear()

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.online_decodes) + len(self.batch_decodes)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.online_decodes, self.batch_decodes, self.prefilling)

    @property
    def is_full(self) -> bool:
        return not self._free_slots

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def num_lent_slots(self, sequence: Sequence) -> int:
        """Count the slots that the batch band has until somebody of another needs them."""
        return 0 if sequence.request.band is Band.BATCH else len(self._of_band[Band.BATCH])

    def num_of(self, band: Band) -> int:
        """Count the sequences of a band."""
        return len(self._of_band[band])

    def has_below(self, band: Band) -> bool:
        """Tell whether a sequence of a lower band runs."""
        return any(self._of_band[band + 1 :])

    def below(self, band: Band) -> Iterator[Sequence]:
        """List the sequences of lower bands."""
        return chain.from_iterable(self._of_band[band + 1 :])

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence a slot; it prefills until `start_decoding`."""
        self._of_band[sequence.request.band][sequence] = None
        self.holdings.admit(sequence)
        sequence.slot = self._free_slots.pop()
        sequence.status = Status.RUNNING
        sequence.admitted_at_step = self.num_steps
        self.decode_rows.accounts[sequence.slot] = sequence.account
        self._in_slots[sequence.slot] = sequence
        self.prefilling[sequence] = None

    def find(self, slot: int) -> Sequence:
        """Find the sequence that has a slot."""
        return self._in_slots[slot]

    def renumber(self) -> None:
        """Look accounts up again, after all have gone to another tree."""
        for sequence in self:
            self.decode_rows.accounts[sequence.slot] = sequence.account

    def start_decoding(self, sequence: Sequence) -> None:
        """Note that a launched step draws the sequence's next token."""
        sequence.course.begin_decoding(self.num_steps)
        del self.prefilling[sequence]
        self.prefilling_rows.leave(sequence.slot)
        self._decodes_of(sequence)[sequence] = None
        self.decode_rows.join(sequence)
        self.pace.join(sequence.slot, sequence.request.slo)
        self.decode_rows.turns[sequence.slot] = self.num_steps << PLACE_BITS

    def promote(self, sequence: Sequence, band: Band) -> None:
        """Move a sequence of the batch band, running or not, to a band that is served online."""
        before = sequence.request.band
        assert before is Band.BATCH is not band
        is_running = sequence in self._of_band[before]
        if is_running:
            del self._of_band[before][sequence]
            self.holdings.release(sequence)
        sequence.request = replace(sequence.request, band=band)
        sequence.holder = int(band), sequence.request.member
        if is_running:
            self._of_band[band][sequence] = None
            self.holdings.admit(sequence)
            self.kv_growth.promote(sequence.slot, band, self.holdings.place(sequence))
        if sequence in self.prefilling:
            self.prefilling_rows.join(sequence)
        if sequence in self.batch_decodes:
            del self.batch_decodes[sequence]
            self.online_decodes[sequence] = None
            self.decode_rows.promote(sequence)
            self.decode_rows.turns[sequence.slot] = self.num_steps << PLACE_BITS

    def release(self, sequence: Sequence, *, suspect: bool = False) -> None:
        """Take a sequence's slot and blocks away; what it drew is found from now on.

        What a `suspect` one computed is not, nor what it began with: it may be what is wrong.
        """
        self._note_leaving(sequence)
        del self._of_band[sequence.request.band][sequence]
        self.holdings.release(sequence)
        if self.prefilling.pop(sequence, self) is self:
            del self._decodes_of(sequence)[sequence]
            num_computed = self.decode_rows.num_computed(sequence)
            self.decode_rows.leave(sequence)
            if not suspect:
                sequence.table.publish(sequence.token_ids, num_computed)
        if suspect:
            sequence.table.withdraw()
        else:
            sequence.table.free()
        self.pace.release(sequence.slot)
        self.kv_growth.release(sequence.slot)
        self.prefilling_rows.leave(sequence.slot)
        del self._in_slots[sequence.slot]
        self._free_slots.append(sequence.slot)
        self._released.append(sequence.slot)
        sequence.slot = NO_SLOT

    def preempt(self, sequence: Sequence, cause: PreemptionCause) -> None:
        """Take a sequence's slot and blocks away for now."""
        self.release(sequence)
        sequence.course.cause = cause
        sequence.num_preemptions += 1
        sequence.lose_kv()
        self._preempted.append(sequence.request.request_id)

    def take_changes(self) -> tuple[list[int], list[str]]:
        """Return the slots released and the requests preempted since the last call."""
        changes = self._released, self._preempted
        self._released, self._preempted = [], []
        return changes

    def clear(self) -> list[Sequence]:
        """Forget everything after the engine did, and return who was running."""
        sequences = list(self)
        for sequence in sequences:
            self._note_leaving(sequence)
            self.holdings.release(sequence)
            if sequence.columns is not None:
                self.decode_rows.leave(sequence)
        for rows in (self.prefilling, self.online_decodes, self.batch_decodes):
            rows.clear()
        self.pace.clear()
        self.kv_growth.clear()
        self.prefilling_rows.clear()
        self._of_band = [{} for _ in Band]
        self._in_slots.clear()
        self._free_slots = list(reversed(range(self.max_num_rows)))
        self._released, self._preempted = [], []
        return sequences

    def note_pause(self, sequence: Sequence) -> None:
        """Note since when a sequence has had no part in steps for want of a grant, if it has not.

        To be told when that changes.
        """
        if sequence.columns is None or sequence.pause_at >= sequence.limit:
            return
        if not sequence.is_paused:
            return
        last_step = self._last_step(sequence)
        since_s = self.step_times.ended_s(last_step)
        if since_s is not None:
            sequence.course.pause(since_s, self.num_steps - last_step - 1)

    def _note_leaving(self, sequence: Sequence) -> None:
        step, num_decodes = self.num_steps, 0
        if sequence.columns is not None:
            num_tokens, num_decodes = self.decode_rows.num_planned(sequence)
            self.note_pause(sequence)
            if num_tokens >= sequence.limit and not sequence.course.is_paused:
                # Steps that were planned while its last token was in flight were none of its.
                step = self._last_step(sequence) + 1
        sequence.course.leave(step, num_decodes)

    def _last_step(self, sequence: Sequence) -> int:
        """Say which step a sequence that decodes was last in."""
        return self.decode_rows.turns.item(sequence.slot) >> PLACE_BITS

    def _decodes_of(self, sequence: Sequence) -> dict[Sequence, None]:
        return self.batch_decodes if sequence.request.band is Band.BATCH else self.online_decodes
