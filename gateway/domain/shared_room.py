"""What tenants hold of something they share, and how much more of it each may have.

A fixed part is no reserve: where each may have a quarter, four tenants that hold theirs leave a
fifth nothing. So a tenant may hold a ratio of what is free, which alone comes to its part of all.
With parts of a quarter, `k` that take all they get come to have 1/(3 + k) each as they give back
what they held, and leave 3/(3 + k) to who comes next; of what is free when it comes none takes more
than a quarter. Who was there before others came keeps what it has, and gets no more until then.
Source: dynamic queue length thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking
6(2), 1998.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID


class SharedRoom:
    """Count what tenants hold of `in_all`, where one alone may have `of_tenant`.

    Of things that are few, who holds none may have one while any is free: `least` is 1.
    """

    def __init__(self, in_all: int, *, of_tenant: int, least: int = 0) -> None:
        assert 0 < of_tenant <= in_all, "a part of it"
        self.in_all: Final = in_all
        self.of_tenant: Final = of_tenant
        self._least = least
        self._taken: dict[UUID | None, int] = {}
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
        free, held = self.in_all - self._num_taken, self._taken.get(tenant_id, 0)
        # What is left to take so that what it holds is the ratio of what is then free, in whole
        # numbers: of a part p, p / (1 - p).
        left = (self.of_tenant * free - (self.in_all - self.of_tenant) * held) // self.in_all
        if not held:
            left = max(left, min(self._least, free))
        return max(left, 0)

    def is_above_its_own(self, tenant_id: UUID | None, number: int) -> bool:
        """Tell whether so much more is beyond what a tenant may have alone."""
        return self._taken.get(tenant_id, 0) + number > self.of_tenant

    def take(self, tenant_id: UUID | None, number: int) -> None:
        """Count more of it, whether or not it was left."""
        if number:
            self._taken[tenant_id] = self._taken.get(tenant_id, 0) + number
            self._num_taken += number

    def give_back(self, tenant_id: UUID | None, number: int) -> None:
        """Count less of it."""
        held = self._taken.get(tenant_id, 0) - number
        assert held >= 0, "it was taken"
        self._num_taken -= number
        if held:
            self._taken[tenant_id] = held
        else:
            self._taken.pop(tenant_id, None)
