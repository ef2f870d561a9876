"""What each tenant holds of the slots and the KV cache, beside what its weight entitles it to.

A tenant's share is its weight over those of all who are live, or were a moment ago, in its band and
the bands above: whoever asked for something lately may ask again, and finds the machine full if
nothing was kept. One that nobody was live beside has all. The tenants of an organisation have one
share together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from scheduler.request import Band, Member
from scheduler.sequence import Sequence

# For how long after its last request a tenant has a share.
_REMEMBERED_S = 60.0
# In a step: of thousands that came together, and are not heard of any more, each takes 3 µs.
_MAX_FORGOTTEN = 128
_ALONE = 1.0 + 1e-9
# Of slots and of blocks, for who has less than its share.
KEPT = 0.125

_NO_PLACE = -1

# The band as a plain number: hashing a band is a call.
_Name = tuple[int, Member]


class Weights(NamedTuple):
    """Sum weights of tenants: of all, of those that wait, of those of one band that do not."""

    all: float
    waiting: float
    own_idle: float


class _Holding:
    __slots__ = ("band", "is_waiting", "num_live", "place", "rows", "seen_s", "weight")

    def __init__(self, band: int) -> None:
        self.band = band
        self.weight = self.seen_s = 0.0
        self.num_live = 0
        self.is_waiting = False
        # While it has rows.
        self.place = _NO_PLACE
        self.rows: dict[Sequence, None] = {}


class Holdings:
    """Know by tenant and band who is live and whose rows run.

    Where no tenant `has_shares`, as where the first to come is served first, each may have all.
    What a step asks about thousands of tenants, as who waits, is kept up as that changes.
    """

    def __init__(self) -> None:
        self.has_shares = True
        # The least lately heard of first.
        self._holdings: OrderedDict[_Name, _Holding] = OrderedDict()
        self._with_rows: dict[_Name, _Holding] = {}
        self._weight_of = [0.0 for _ in Band]
        # Of each band and those above.
        self._weight_up_to = [0.0 for _ in Band]
        self._waiting_weight_of = [0.0 for _ in Band]
        self._num_waiting_of = [0 for _ in Band]
        # Those with rows whose requests all have one.
        self._content: dict[_Holding, None] = {}
        self._free_places: list[int] = []
        self._num_places = 0

    def join(self, sequence: Sequence, now: float) -> None:
        """Note a request that is taken in."""
        holding = self._of(sequence)
        holding.num_live += 1
        self._weigh(holding, sequence.request.member_weight)
        self._note_waiting(holding)
        self._see(sequence.holder, holding, now)

    def leave(self, sequence: Sequence, now: float) -> None:
        """Note that a request has ended."""
        holding = self._of(sequence)
        holding.num_live -= 1
        self._note_waiting(holding)
        self._see(sequence.holder, holding, now)

    def set_weight(self, tenant_id: str, weight: float) -> None:
        """Change what a tenant of no organisation is entitled to."""
        self._set_weight((False, tenant_id), weight)

    def set_organisation_weight(self, organisation_id: str, weight: float) -> None:
        """Change what an organisation is entitled to."""
        self._set_weight((True, organisation_id), weight)

    def lean(self, band: Band, member: Member, ratio: float) -> None:
        """Multiply what a tenant of no organisation, or an organisation, is entitled to."""
        holding = self._holdings.get((int(band), member))
        if holding is not None:
            self._weigh(holding, holding.weight * ratio)

    def _set_weight(self, member: Member, weight: float) -> None:
        for band in Band:
            holding = self._holdings.get((int(band), member))
            if holding is not None:
                self._weigh(holding, weight)

    def admit(self, sequence: Sequence) -> None:
        """Note that a request has been given a slot."""
        holding = self._of(sequence)
        if not holding.rows:
            self._with_rows[sequence.holder] = holding
            holding.place = self._open_place()
        holding.rows[sequence] = None
        self._note_waiting(holding)

    def release(self, sequence: Sequence) -> None:
        """Note that a request has given its slot back."""
        holding = self._of(sequence)
        if sequence not in holding.rows:
            return
        del holding.rows[sequence]
        if not holding.rows:
            del self._with_rows[sequence.holder]
            self._free_places.append(holding.place)
            holding.place = _NO_PLACE
        self._note_waiting(holding)

    def place(self, sequence: Sequence) -> int:
        """Number a request's tenant among those that have rows, below the number of rows."""
        return self._of(sequence).place

    def places_of_content(self, band: Band) -> list[int]:
        """List the places of who has rows, in `band` and above, and no request without one."""
        return [holding.place for holding in self._content if holding.band <= band]

    def rows_beside(self, sequence: Sequence) -> dict[Sequence, None]:
        """List the rows that run of a request's tenant, in its band."""
        return self._of(sequence).rows

    def some_rows(self) -> Iterator[Sequence]:
        """List a row of each tenant and band that has one."""
        for holding in self._with_rows.values():
            yield next(iter(holding.rows))

    def share(self, sequence: Sequence) -> float:
        """Say what part of the machine a request's tenant is entitled to, up to 1."""
        if not self.has_shares:
            return 1.0
        weight = self._of(sequence).weight
        # What was added and taken away again may leave a little.
        all_weight = self._weight_up_to[sequence.holder[0]]
        return 1.0 if all_weight < weight * _ALONE else weight / all_weight

    def waits(self, sequence: Sequence) -> bool:
        """Tell whether a request's tenant has any in its band that have no slot."""
        return self._of(sequence).is_waiting

    def weights_up_to(self, band: Band) -> Weights:
        """Weigh all that have shares in `band` and above, and who waits; see `Weights`."""
        own_idle = max(0.0, self._weight_of[band] - self._waiting_weight_of[band])
        waiting = sum(self._waiting_weight_of[: band + 1])
        return Weights(self._weight_up_to[band], waiting, own_idle)

    def slots_kept_from(self, sequence: Sequence, num_slots: int) -> int:
        """Count the slots of `num_slots` that a request leaves free for who is below its share.

        None while its tenant has less than its share of them, and none where its first token was
        promised: admission has told it when it will be served.
        """
        if sequence.request.slo.ttft_s is not None:
            return 0
        share = self.share(sequence)
        if len(self.rows_beside(sequence)) < share * num_slots:
            return 0
        return round(min(KEPT, 1.0 - share) * num_slots)

    def _of(self, sequence: Sequence) -> _Holding:
        name = sequence.holder
        holding = self._holdings.get(name)
        if holding is None:
            holding = self._holdings[name] = _Holding(name[0])
            self._weigh(holding, sequence.request.member_weight)
        return holding

    def _weigh(self, holding: _Holding, weight: float) -> None:
        if weight == holding.weight:
            return
        self._weight_of[holding.band] += weight - holding.weight
        if holding.is_waiting:
            self._waiting_weight_of[holding.band] += weight - holding.weight
        holding.weight = weight
        for band in range(holding.band, len(self._weight_of)):
            self._weight_up_to[band] = sum(self._weight_of[: band + 1])

    def _note_waiting(self, holding: _Holding) -> None:
        """Note whether a tenant has requests without a slot, once either count has changed."""
        is_waiting, band = holding.num_live > len(holding.rows), holding.band
        if is_waiting is not holding.is_waiting:
            holding.is_waiting = is_waiting
            sign = 1 if is_waiting else -1
            self._waiting_weight_of[band] += sign * holding.weight
            self._num_waiting_of[band] += sign
            if not self._num_waiting_of[band]:
                # What was added and taken away again may leave a little.
                self._waiting_weight_of[band] = 0.0
        if holding.rows and not is_waiting:
            self._content[holding] = None
        else:
            self._content.pop(holding, None)

    def _open_place(self) -> int:
        if self._free_places:
            return self._free_places.pop()
        self._num_places += 1
        return self._num_places - 1

    def _see(self, name: _Name, holding: _Holding, now: float) -> None:
        holding.seen_s = now
        self._holdings.move_to_end(name)

    def forget(self, now: float) -> None:
        """Forget some of the tenants that have asked for nothing lately; who is live is kept.

        To be called once a step.
        """
        for _ in range(min(_MAX_FORGOTTEN, len(self._holdings))):
            name = next(iter(self._holdings))
            holding = self._holdings[name]
            if now - holding.seen_s <= _REMEMBERED_S:
                return
            if holding.num_live:
                self._see(name, holding, now)
                continue
            del self._holdings[name]
            self._weigh(holding, 0.0)
