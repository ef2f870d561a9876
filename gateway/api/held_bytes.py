"""Bounds the memory that requests hold in the gateway, for a tenant and in all.

Bodies that are being read or understood: one is bounded by its length, and connections by their
number; together they may still be more than a machine has: four thousand bodies of which the last
byte never comes. So bytes are counted as they come, and given back once a body has become what is
asked of the engine. A client that only says how much it is going to send has taken nothing yet. A
keyed request runs on without its client, so its body is held until it has ended, and counts twice
while it is read from there. How many tenants there may be that hold all they get, some is left for
another: see `gateway.domain.shared_room`.

Log-probabilities of answers that are gathered whole: a kilobyte a token, counted as they come, so
what was computed is lost where there is no room for more. Several that grow alike would all come to
that: so the one that began last gives way to those before it, and batches' give way first. Kept
answers that are sent again, and what a keyed run has said that its client has not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from gateway.domain.shared_room import SharedRoom
from gateway.errors import (
    AnswersSaturated,
    AnswersTooLarge,
    BodiesTooLarge,
    Overloaded,
    Saturated,
    TenantLimited,
)

MAX_BYTES: Final = 256 << 20
# What a tenant may have of it, where others hold little.
TENANT_SHARE: Final = 0.25
_RETRY_AFTER_S: Final = 1.0


class HeldBytes:
    """Count what all tenants hold of one kind; on the event loop alone.

    What passes a tenant's share is refused with `of_tenant`, what is not left for it beside what
    others hold with `of_all`.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        *,
        of_tenant: type[TenantLimited] = BodiesTooLarge,
        of_all: type[Overloaded] = Saturated,
        owner_of: Callable[[UUID], UUID] | None = None,
    ) -> None:
        self.max_tenant_bytes = int(max_bytes * TENANT_SHARE)
        self._of_tenant, self._of_all = of_tenant, of_all
        self._shared = SharedRoom(max_bytes, of_tenant=self.max_tenant_bytes, owner_of=owner_of)
        # Of answers that grow yet.
        self._growing: defaultdict[UUID, set[GrowingRoom]] = defaultdict(set)
        self._num_rooms = 0

    @property
    def num_bytes(self) -> int:
        """How much there is now."""
        return self._shared.num_taken

    def room(self, tenant_id: UUID) -> Room:
        """Make room for one request; use as a context manager for as long as it holds anything."""
        return Room(self, tenant_id)

    def growing_room(self, tenant_id: UUID, *, is_batch: bool = False) -> GrowingRoom:
        """Make room for an answer that is gathered, which gives way to those before it."""
        self._num_rooms += 1
        return GrowingRoom(self, tenant_id, (is_batch, self._num_rooms))

    def make_room(self, room: GrowingRoom, tenant_id: UUID, num_bytes: int) -> None:
        """Have answers of a tenant that began after this one give way for so much more."""
        growing = self._growing[tenant_id]
        growing.add(room)
        while num_bytes > self._shared.left(tenant_id):
            last = max(growing, key=attrgetter("rank"))
            if last is room:
                return
            last.give_way()

    def stops_growing(self, room: GrowingRoom, tenant_id: UUID) -> None:
        """Note that an answer is whole, or is given up."""
        growing = self._growing.get(tenant_id)
        if growing is not None:
            growing.discard(room)
            if not growing:
                del self._growing[tenant_id]

    def refusal(self) -> TenantLimited:
        """Return what a tenant is refused with."""
        return self._of_tenant(retry_after_s=_RETRY_AFTER_S)

    def take(self, tenant_id: UUID, num_bytes: int) -> None:
        """Count more. Raises: `TenantLimited`, `Overloaded`: there is no room."""
        if num_bytes > self._shared.left(tenant_id):
            if self._shared.is_above_its_own(tenant_id, num_bytes):
                raise self.refusal()
            raise self._of_all(retry_after_s=_RETRY_AFTER_S)
        self._shared.take(tenant_id, num_bytes)

    def ask(self, tenant_id: UUID, num_bytes: int) -> None:
        """Raise as `take` where there is no room; who holds nothing has it for one of any size."""
        if self._shared.taken_by(tenant_id):
            self.take(tenant_id, num_bytes)
            self.give_back(tenant_id, num_bytes)

    def hold(self, tenant_id: UUID, num_bytes: int) -> None:
        """Count more that is there already, whatever room there is."""
        self._shared.take(tenant_id, num_bytes)

    def is_full(self, tenant_id: UUID) -> bool:
        """Tell whether nothing more is left for a tenant."""
        return not self._shared.left(tenant_id)

    def give_back(self, tenant_id: UUID, num_bytes: int) -> None:
        """Count less."""
        self._shared.give_back(tenant_id, num_bytes)


def held_answers(
    max_bytes: int = MAX_BYTES, *, owner_of: Callable[[UUID], UUID] | None = None
) -> HeldBytes:
    """Count what answers take that are gathered whole."""
    return HeldBytes(
        max_bytes, of_tenant=AnswersTooLarge, of_all=AnswersSaturated, owner_of=owner_of
    )


class Room:
    """Hold what one request takes."""

    def __init__(self, held: HeldBytes, tenant_id: UUID) -> None:
        self._held = held
        self._tenant_id = tenant_id
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """How much it holds now."""
        return self._num_bytes

    def grow(self, num_bytes: int) -> None:
        """Take what has come. Raises: as `HeldBytes.take`."""
        self._held.take(self._tenant_id, num_bytes)
        self._num_bytes += num_bytes

    def ask(self, num_bytes: int) -> None:
        """Raise as `HeldBytes.ask` where there is no room for so much."""
        self._held.ask(self._tenant_id, num_bytes)

    def hold(self, num_bytes: int) -> None:
        """Count what is there already."""
        self._held.hold(self._tenant_id, num_bytes)
        self._num_bytes += num_bytes

    def shrink(self, num_bytes: int) -> None:
        """Give some of it back."""
        self._held.give_back(self._tenant_id, num_bytes)
        self._num_bytes -= num_bytes

    @property
    def is_full(self) -> bool:
        """Tell whether there is no room for anything more."""
        return self._held.is_full(self._tenant_id)

    def is_too_small(self, num_bytes: int) -> bool:
        """Tell whether so much more would not fit if its tenant held nothing else."""
        return self._num_bytes + num_bytes > self._held.max_tenant_bytes

    def close(self) -> None:
        """Give all of it back; a second time changes nothing."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num_bytes:
            self._held.give_back(self._tenant_id, num_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class GrowingRoom(Room):
    """Hold what an answer takes that is being gathered; one of greater rank goes sooner."""

    def __init__(self, held: HeldBytes, tenant_id: UUID, rank: tuple[bool, int]) -> None:
        super().__init__(held, tenant_id)
        self.rank = rank
        self._has_given_way = False

    def grow(self, num_bytes: int) -> None:
        """Take what has come. Raises: as `HeldBytes.take`, and where it has given way."""
        if self._has_given_way:
            raise self._held.refusal()
        self._held.make_room(self, self._tenant_id, num_bytes)
        super().grow(num_bytes)

    def reserve(self, num_bytes: int) -> None:
        """Take what is known before it is made: nobody gives way for that, nor that for others.

        Raises: as `HeldBytes.take`.
        """
        super().grow(num_bytes)

    def give_way(self) -> None:
        """Give all of it back for another; what comes next is refused."""
        self._has_given_way = True
        self.close()

    def is_whole(self) -> None:
        """Note that no more comes: from now on it holds what it has until that is sent.

        Raises: as `HeldBytes.take`, where it has given way since the last came.
        """
        if self._has_given_way:
            raise self._held.refusal()
        self._held.stops_growing(self, self._tenant_id)

    def close(self) -> None:
        """Give all of it back; a second time changes nothing."""
        self._held.stops_growing(self, self._tenant_id)
        super().close()
