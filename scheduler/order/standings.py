"""How far organisations and tenants are ahead of their shares, by what they were charged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scheduler.config import FairnessConfig
from scheduler.order.accounts import Accounts
from scheduler.order.tree_node import Level
from scheduler.policies.registry import make_policy
from scheduler.sequence import MEMBER, Sequence

_TURN_TOKENS = 2048.0


class Standings(Accounts):
    """Tell how requests stand beside those of others; 0.0 where shares are not kept."""

    def __init__(self, config: FairnessConfig) -> None:
        super().__init__(config)
        # Whether tenants have shares, and not turns by the order of their requests.
        self.has_shares = make_policy(self._levels[Level.BAND], config).keeps_accounts

    def share_counters(self, sequence: Sequence) -> tuple[float, float]:
        """Tell how far the organisation and the tenant of a request are ahead of their shares.

        A tenant of no organisation stands for both. Within an organisation a prompt under way is
        reckoned as if it had not been charged, until it has had `_TURN_TOKENS`: newcomers would all
        pass those just charged, and hundreds of tenants fill the slots with prompts that nobody
        finishes. 0.0 where shares are not kept.
        """
        tenant = self._node_of[sequence].above
        member = tenant.member
        if not member.above.policy.keeps_accounts:
            return 0.0, 0.0
        if member is tenant:
            return tenant.counter, tenant.counter
        num_had = max(sequence.num_ran, sequence.num_computed)
        if num_had >= sequence.num_charged:
            return member.counter, tenant.counter
        had = self.unit.rest(sequence.num_charged, 0)
        had -= self.unit.rest(sequence.num_charged, num_had)
        beyond = max(0.0, had - _TURN_TOKENS)
        return member.counter, sequence.begun_at_counter + beyond / tenant.weight

    def share_counters_of(
        self, accounts: NDArray[np.intp], row_of: Callable[[int], Sequence]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Do the same for many requests by the `account` of each, [n, 4].

        `row_of` finds the request of an index. Returns: two columns.
        """
        values = self._counters.values
        if not self.has_shares:
            return np.zeros(len(accounts)), np.zeros(len(accounts))
        tenants, members = accounts[:, 1], accounts[:, MEMBER]
        counters = values[members], values[tenants]
        if self._organisations:
            for index in np.flatnonzero(tenants != members).tolist():
                counters[1][index] = self.share_counters(row_of(index))[1]
        return counters

    def note_begin(self, sequence: Sequence) -> None:
        """Remember where its tenant stood when a request was given a slot, before its charge."""
        sequence.begun_at_counter = self._node_of[sequence].above.counter

    def lead(self, sequence: Sequence, first: Sequence) -> float:
        """Count by how much a tenant would go ahead of another of its band; of a higher one, 0."""
        if sequence.request.band != first.request.band:
            return 0.0
        counters = self.share_counters(sequence)[0] - self.share_counters(first)[0]
        return counters * self._node_of[sequence].above.member.weight

    def share_counter_of_next(self, sequence: Sequence, now: float) -> float:
        """Tell how far who sends a request will be ahead in its band, had it begun to wait now.

        The request is not enrolled; of a tenant of an organisation it is that one's counter.
        """
        request = sequence.request
        band = self.bands.get(request.band.name)
        if band is None or not band.policy.keeps_accounts:
            return 0.0
        member = self.find_member(request)
        if member is not None and member.num_waiting:
            return member.counter
        # What its counter would be; it is not kept, since pushing it does the same in time.
        before, sequence.counter = sequence.counter, 0.0 if member is None else member.counter
        band.policy.activate(sequence, band.order, now)
        counter, sequence.counter = sequence.counter, before
        return counter
