"""What tenants hold of something they share, and how much more of it each may have.

A fixed part is no reserve: where each may have a quarter, four tenants that hold theirs leave a
fifth nothing. So a tenant may hold a ratio of what is free, which alone comes to its part of all.
With parts of a quarter, `k` that take all they get come to have 1/(3 + k) each as they give back
what they held, and leave 3/(3 + k) to who comes next; of what is free when it comes none takes more
than a quarter. Who was there before others came keeps what it has, and gets no more until then.

Tenants of one organisation may be hundreds. Together they have a ratio as well, by which one
organisation alone leaves a quarter of all to others; a tenant of none is its own.

Source: dynamic queue length thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking
6(2), 1998.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

# What an organisation may have where others hold nothing.
_OF_OWNER: Final = 0.75


class SharedRoom:
    """Count what tenants hold of `in_all`, where one alone may have `of_tenant`.

    Of things that are few, who holds none may have one while any is free: `least` is 1. `owner_of`
    names a tenant's organisation, or the tenant where it is of none.
    """

    def __init__(
        self,
        in_all: int,
        *,
        of_tenant: int,
        least: int = 0,
        owner_of: Callable[[UUID], UUID] | None = None,
    ) -> None:
        assert 0 < of_tenant <= in_all, "a part of it"
        self.in_all: Final = in_all
        self.of_tenant: Final = of_tenant
        self._least = least
        self._owner_of = owner_of
        self._of_owner = max(of_tenant, int(_OF_OWNER * in_all))
        self._taken: dict[UUID | None, int] = {}
        # Of who holds any: whose it was when it came, and what those hold together.
        self._owners: dict[UUID, UUID] = {}
        self._taken_of: dict[UUID, int] = {}
        self._num_taken = 0

    @property
    def num_taken(self) -> int:
        """How much all hold."""
        return self._num_taken

    def taken_by(self, tenant_id: UUID | None) -> int:
        """Return how much a tenant holds."""
        return self._taken.get(tenant_id, 0)

    def left(self, tenant_id: UUID | None) -> int:
        """Return how much more a tenant may take now; nothing where it holds too much already."""
        left = self._left_of(self.of_tenant, self._taken.get(tenant_id, 0))
        if self._owner_of is not None and tenant_id is not None:
            owner_id = self._owners.get(tenant_id) or self._owner_of(tenant_id)
            left = min(left, self._left_of(self._of_owner, self._taken_of.get(owner_id, 0)))
        return left

    def is_above_its_own(self, tenant_id: UUID | None, number: int) -> bool:
        """Tell whether so much more is beyond what a tenant may have alone."""
        return self._taken.get(tenant_id, 0) + number > self.of_tenant

    def take(self, tenant_id: UUID | None, number: int) -> None:
        """Count more of it, whether or not it was left."""
        if number:
            self._taken[tenant_id] = self._taken.get(tenant_id, 0) + number
            self._num_taken += number
            self._note_owner(tenant_id, number)

    def give_back(self, tenant_id: UUID | None, number: int) -> None:
        """Count less of it."""
        held = self._taken.get(tenant_id, 0) - number
        assert held >= 0, "it was taken"
        self._num_taken -= number
        self._note_owner(tenant_id, -number)
        if held:
            self._taken[tenant_id] = held
        else:
            self._taken.pop(tenant_id, None)
            if tenant_id is not None:
                self._owners.pop(tenant_id, None)

    def _left_of(self, part: int, held: int) -> int:
        """Say what is left to take so that what is held is the ratio of what is then free.

        In whole numbers: of a part p, p / (1 - p).
        """
        free = self.in_all - self._num_taken
        left = (part * free - (self.in_all - part) * held) // self.in_all
        if not held:
            left = max(left, min(self._least, free))
        return max(left, 0)

    def _note_owner(self, tenant_id: UUID | None, number: int) -> None:
        if self._owner_of is None or tenant_id is None or not number:
            return
        owner_id = self._owners.setdefault(tenant_id, self._owner_of(tenant_id))
        held = self._taken_of.get(owner_id, 0) + number
        if held:
            self._taken_of[owner_id] = held
        else:
            del self._taken_of[owner_id]
