"""The sequences that hold a slot of the engine.

Slots are rows of the engine's state table. What happens to them between two plans is collected
here and told to the engine with the next plan: that plan's steps come after all earlier ones on
the engine's single stream, so a slot or block may be given to another as soon as it is free.
"""

from __future__ import annotations

from scheduler.sequence import NO_SLOT, Sequence, Status


class RunningSet:
    """Hold up to `max_num_rows` sequences: those that prefill and those that decode.

    Both are dicts for their order and for removal in O(1); the values mean nothing.
    """

    def __init__(self, max_num_rows: int) -> None:
        self.max_num_rows = max_num_rows
        self.prefilling: dict[Sequence, None] = {}
        self.decoding: dict[Sequence, None] = {}
        self._free_slots: list[int] = []
        self._released: list[int] = []
        self._preempted: list[str] = []
        self.clear()

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def is_full(self) -> bool:
        return not self._free_slots

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence a slot; it prefills until `start_decoding`."""
        sequence.slot = self._free_slots.pop()
        sequence.status = Status.RUNNING
        self.prefilling[sequence] = None

    def start_decoding(self, sequence: Sequence) -> None:
        """Note that a launched step draws the sequence's next token."""
        del self.prefilling[sequence]
        self.decoding[sequence] = None

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's slot and blocks away."""
        if self.prefilling.pop(sequence, self) is self:
            del self.decoding[sequence]
        sequence.table.free()
        self._free_slots.append(sequence.slot)
        self._released.append(sequence.slot)
        sequence.slot = NO_SLOT

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's slot and blocks away for now."""
        self.release(sequence)
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
        sequences = [*self.decoding, *self.prefilling]
        self.prefilling.clear()
        self.decoding.clear()
        self._free_slots = list(reversed(range(self.max_num_rows)))
        self._released, self._preempted = [], []
        return sequences
