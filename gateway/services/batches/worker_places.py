"""How many items more each of a process's engines may be given.

An engine that is busy with other work, or pressed, takes none, and holds nobody up who asks for
another model: of a batch that asks for several, the one with the fewest places counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gateway.services.batches.worker_ports import HasRoom
from scheduler.state import Room

# Of free slots: what is claimed ahead is there when one gets free, and is little to give back.
CLAIM_AHEAD: Final = 2
# Of the blocks. Batch work itself leaves a tenth of them free.
_NEARLY_FULL: Final = 0.92
# Of what runs: less is not claimed by itself, as each claim is a transaction.
_HANDFUL: Final = 4


class Places:
    """Count the places; `claimed` has the models of each item that runs or is about to."""

    def __init__(
        self,
        engines: Mapping[str, HasRoom],
        claimed: Iterable[Sequence[str]],
        *,
        is_pressed: Callable[[str], bool],
    ) -> None:
        self._engines = engines
        num_claimed: Counter[int] = Counter()
        for models in claimed:
            num_claimed.update(self._of(models))
        self._free: dict[int, int] = {}
        # Asked for each batch that is open, of which most ask for the same.
        self._known: dict[tuple[str, ...], int] = {}
        for name, engine in engines.items():
            if id(engine) not in self._free:
                num = num_claimed[id(engine)]
                free = 0 if is_pressed(name) else free_places(engine.room(), num)
                self._free[id(engine)] = free if free >= num // _HANDFUL else 0

    @property
    def total(self) -> int:
        """Return how many there are in all."""
        return sum(self._free.values())

    def of(self, models: Sequence[str]) -> int:
        """Return how many there are for items that ask for these models."""
        name = tuple(models)
        found = self._known.get(name)
        if found is None:
            found = min((self._free[engine] for engine in self._of(models)), default=0)
            self._known[name] = found
        return found

    def take(self, models: Sequence[str], number: int) -> None:
        """Take places that items were claimed for."""
        self._known.clear()
        for engine in self._of(models):
            self._free[engine] -= number

    def _of(self, models: Sequence[str]) -> set[int]:
        """Name the engines of models; where none is known, it may be any."""
        known = [name for name in models if name in self._engines]
        return {id(self._engines[name]) for name in known or self._engines}


def free_places(room: Room, num_claimed: int) -> int:
    """Say how many more items to claim: in all, twice as many as there are slots left for them.

    None while other work waits, or the memory is nearly full: it needs the room first.
    """
    if room.num_online_waiting or room.kv > _NEARLY_FULL:
        return 0
    num_free = max(0, room.num_slots - room.num_online_running)
    return max(0, CLAIM_AHEAD * num_free - num_claimed)
