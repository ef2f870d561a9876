"""Settle with the counters what a dead process had billed but not settled.

A request writes its row into the journal first. Where its process died before the counters heard
of it, its hold is still there; whoever takes the journal over finds the row and settles it, so
that the counters count what the ledger does. A row that was settled before changes nothing.

Counters that have lost everything learn from the ledger what was used; of what waits in the journal
for the ledger they are told in the same way, so that whoever loads them asks for it. While this
process was cut off from them somebody may have loaded them, without what has come into the ledger
since: they are told whose that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final
from uuid import UUID

import msgspec

from gateway.domain.counters import Recount, Settle
from gateway.domain.limits import BASE_S, Told
from gateway.domain.usage import UsageRow
from gateway.services.quotas.bill import Meta
from gateway.services.quotas.lease import used_amounts
from gateway.services.quotas.link import LEASE_S, CounterLink

# As many as `upkeep.lua` keeps of what ended.
_MAX_ROWS: Final = 5000
# Twice as long as others wait for who is cut off before they load the counters without it.
_RECENT_S: Final = 2 * LEASE_S
_MAX_OWNERS, _BATCH = 5000, 50


class Recovery:
    """Tell this process's rows, which it settles itself, from those that it took over."""

    def __init__(self, append: Callable[[UsageRow], None], link: CounterLink) -> None:
        self._append = append
        self._link = link
        self._own: set[UUID] = set()
        # Whose rows have come into the ledger: organisation, tenant and key, and when the last did.
        self._billed_s: dict[tuple[UUID, UUID, UUID], float] = {}

    def append(self, row: UsageRow) -> None:
        """Write a row of this process's own."""
        self._own.add(row.request_id)
        self._append(row)

    def written(self, rows: Sequence[UsageRow]) -> None:
        """Learn which rows are in the ledger now; settle those of others."""
        now_s = self._link.now_s()
        if len(self._billed_s) > _MAX_OWNERS:
            self._forget_older()
        for row in rows:
            self._billed_s[row.organisation_id, row.tenant_id, row.key_id] = now_s
            if row.request_id in self._own:
                self._own.discard(row.request_id)
            else:
                self.settle(row)

    def settle_again(self, rows: Iterable[UsageRow]) -> None:
        """Settle what the ledger does not have yet, after the counters forgot everything.

        They remember no more of it than that. A read of so many rows takes milliseconds.
        """
        for row in islice(rows, _MAX_ROWS):
            self.settle(row)
        self._forget_older()
        owners = [msgspec.json.encode(owner).decode() for owner in self._billed_s]
        for first in range(0, len(owners), _BATCH):
            self._link.post(Recount(owners[first : first + _BATCH]))

    def _forget_older(self) -> None:
        since_s = self._link.now_s() - _RECENT_S
        self._billed_s = {who: at_s for who, at_s in self._billed_s.items() if at_s > since_s}

    def settle(self, row: UsageRow) -> None:
        """Settle a row that was taken over, or that counters which begin anew may not know."""
        rate_tokens = row.rate_tokens
        if rate_tokens is None:
            # Of a release that counted cached tokens for nothing.
            rate_tokens = row.input_tokens - row.cached_tokens
        told = Told(
            row.input_tokens, row.cached_tokens, row.output_tokens, row.nano_usd, rate_tokens
        )
        at_us = round((row.at.timestamp() - BASE_S) * 1_000_000)
        meta = Meta.of(row).packed()
        op = Settle(row.request_id.hex, used_amounts(told), at_us=at_us, meta=meta)
        self._link.post(op)
