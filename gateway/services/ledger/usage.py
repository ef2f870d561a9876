"""Usage, summed for who paid for it and for who runs it.

A question first has this process's own spool written, so that a client that has just got its
answer finds its request in the sums; those of other processes follow within half a second.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

from gateway.credentials import is_kid
from gateway.domain import is_name
from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum, UsageTotals
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import Clock, KeyStore, TenantStore, UsageStore

MAX_ROWS: Final = 50_000
DEFAULT_DAYS: Final = 30
_FLUSH_TIMEOUT_S: Final = 0.5


class Flushes(Protocol):
    async def flush(self, timeout_s: float) -> bool:
        """Write what has ended into the ledger."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAsked:
    """Hold what somebody asks, in their words: names and kids, and times that may be missing."""

    by: tuple[UsageBy, ...]
    start: datetime | None = None
    end: datetime | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None


class UsageService:
    """Answer questions about usage; who may ask is decided above."""

    def __init__(
        self,
        usage: UsageStore,
        keys: KeyStore,
        tenants: TenantStore,
        writer: Flushes,
        *,
        max_rows: int = MAX_ROWS,
        clock: Clock = time,
    ) -> None:
        self._usage = usage
        self._keys = keys
        self._tenants = tenants
        self._writer = writer
        self._max_rows = max_rows
        self._clock = clock

    async def question(
        self, asked: UsageAsked, *, organisation_id: UUID, tenant_id: UUID | None
    ) -> UsageQuestion:
        """Put what is asked into terms of the ledger, for one tenant or for all.

        Without times it is the last 30 days, this one included.
        Raises: `InvalidRequest`: the times; `NotFound`: no such tenant or key where it may look.
        """
        if asked.tenant is not None:
            named = await self._tenant_id(organisation_id, asked.tenant)
            if named is None or tenant_id not in (None, named):
                raise NotFound("There is no tenant of that name.", param="tenant")
            tenant_id = named
        start, end = self._times(asked)
        key_id = None
        if asked.key is not None:
            key_id = await self._key_id(asked.key, organisation_id, tenant_id)
        return UsageQuestion(
            organisation_id=organisation_id,
            start=start,
            end=end,
            by=asked.by,
            tenant_id=tenant_id,
            key_id=key_id,
            model=asked.model,
        )

    async def answer(self, question: UsageQuestion) -> tuple[UsageTotals, Sequence[UsageSum]]:
        """Return the total and its parts. Raises: `InvalidRequest`: they are too many."""
        sums: list[UsageSum] = []
        async with aclosing(self.batches(question)) as batches:
            async for batch in batches:
                sums += batch
                if len(sums) > self._max_rows:
                    raise InvalidRequest(
                        f"The answer has more than {self._max_rows:,} rows: ask for a shorter "
                        "time, or group by less.",
                        param="group_by",
                    )
        columns = zip(*(astuple(one.totals) for one in sums), strict=True)
        return UsageTotals(*map(sum, columns)), sums

    async def batches(self, question: UsageQuestion) -> AsyncGenerator[Sequence[UsageSum], None]:
        """Answer however much it is, bit by bit; close it where it is left early."""
        await self._writer.flush(_FLUSH_TIMEOUT_S)
        async with aclosing(self._usage.sums(question)) as batches:
            async for batch in batches:
                yield batch

    def _times(self, asked: UsageAsked) -> tuple[datetime, datetime]:
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        end = asked.end
        if end is None:
            # Past what is being reserved right now, by any gateway's clock.
            end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
        start = asked.start
        if start is None:
            last = min(now, end).astimezone(UTC)
            today = last.replace(hour=0, minute=0, second=0, microsecond=0)
            start = today - timedelta(days=DEFAULT_DAYS - 1)
        if start >= end:
            raise InvalidRequest("'from' must be before 'to'.", param="from")
        return start, end

    async def _tenant_id(self, organisation_id: UUID, name: str) -> UUID | None:
        if not is_name(name):
            return None
        tenant = await self._tenants.by_name(organisation_id, name)
        return None if tenant is None else tenant.id

    async def _key_id(self, kid: str, organisation_id: UUID, tenant_id: UUID | None) -> UUID:
        record = await self._keys.find(kid) if is_kid(kid) else None
        owner = None if record is None else record.principal
        if (
            owner is None
            or owner.organisation_id != organisation_id
            or tenant_id not in (None, owner.tenant_id)
        ):
            raise NotFound("There is no key of that id.", param="key")
        return owner.key_id
