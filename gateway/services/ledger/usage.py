"""Usage, summed for who paid for it and for who runs it.

A question first has this process's own spool written, so that a client that has just got its
answer finds its request in the sums; those of other processes follow within half a second.

What is read from the store is read in one go and within a time, for an answer or into an export:
nothing of the store waits for a client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Final, Protocol, TypeVar
from uuid import UUID

from gateway.credentials import is_kid
from gateway.domain import KeyRef
from gateway.domain.tenant_archive import is_past_name
from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum, UsageTotals
from gateway.errors import InvalidRequest, NotFound, Overloaded
from gateway.ports import Clock, KeyStore, TenantStore, UsageStore
from gateway.services.ledger.exports import Export, Exports
from gateway.services.ledger.report_gate import ReportGate

MAX_ROWS: Final = 50_000
DEFAULT_DAYS: Final = 30
_FLUSH_TIMEOUT_S: Final = 0.5
READ_S: Final = 30.0
# So many rows are summed up where they stand; more hold the event loop.
_FEW_ROWS: Final = 200
_COLUMNS: Final = [attrgetter(one.name) for one in fields(UsageTotals)]

_Batch = TypeVar("_Batch")


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
        exports: Exports | None = None,
        max_rows: int = MAX_ROWS,
        read_s: float = READ_S,
        clock: Clock = time,
    ) -> None:
        self._usage = usage
        self._keys = keys
        self._tenants = tenants
        self._writer = writer
        self._exports = exports or Exports()
        self._gate = ReportGate(clock=clock)
        self._max_rows = max_rows
        self._read_s = read_s
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
        """Return the total and its parts.

        Raises: `InvalidRequest`: they are too many; `TenantLimited`, `Overloaded`: too many ask, or
        it takes too long.
        """
        total, [sums] = await self.answer_by(question, [question.by])
        return total, sums

    async def answer_by(
        self, question: UsageQuestion, ways: Sequence[tuple[UsageBy, ...]]
    ) -> tuple[UsageTotals, Sequence[Sequence[UsageSum]]]:
        """Return the total and its parts as each of `ways` tells them apart, for one report.

        Raises: as `answer`; what is too many are all of them.
        """
        parts: list[list[UsageSum]] = [[] for _ in ways]
        num_rows = 0
        async with self._reading(question, self._usage.sums_by(question, ways)) as batches:
            async for batch in batches:
                for way, one in batch:
                    parts[way].append(one)
                num_rows += len(batch)
                if num_rows > self._max_rows:
                    raise InvalidRequest(
                        f"The answer has more than {self._max_rows:,} rows: ask for a shorter "
                        "time, or group by less.",
                        param="group_by",
                    )
        fewest = min(parts, key=len)
        if len(fewest) <= _FEW_ROWS:
            return _added_up(fewest), parts
        return await asyncio.to_thread(_added_up, fewest), parts

    @asynccontextmanager
    async def export(
        self, question: UsageQuestion, encode: Callable[[Sequence[UsageSum]], bytes]
    ) -> AsyncIterator[Export]:
        """Collect an answer, as `encode` writes its batches on a thread; gone with the block.

        It begins with what `encode` makes of nothing. Raises: as `answer`, but for exports.
        """
        async with self._exports.opened(_whose(question)) as export:
            await export.write(lambda: encode(()))
            async with self._reading(question, self._usage.sums(question)) as batches:
                async for batch in batches:
                    await export.write(partial(encode, batch))
            yield export

    @asynccontextmanager
    async def _reading(
        self, question: UsageQuestion, answered: AsyncGenerator[_Batch, None]
    ) -> AsyncIterator[AsyncGenerator[_Batch, None]]:
        """Open what the store answers, in a place and a time of its own."""
        async with self._gate.running(_whose(question), question.organisation_id):
            await self._writer.flush(_FLUSH_TIMEOUT_S)
            try:
                async with (
                    asyncio.timeout(self._read_s),
                    aclosing(answered) as batches,
                ):
                    yield batches
            except TimeoutError:
                raise Overloaded(
                    f"The report took more than {self._read_s:.0f} s to read: ask for a shorter "
                    "time, or group by less.",
                    code="report_timeout",
                    retry_after_s=self._read_s,
                ) from None

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
        if not is_past_name(name):
            return None
        tenant = await self._tenants.by_name(organisation_id, name)
        return None if tenant is None else tenant.id

    async def _key_id(self, kid: str, organisation_id: UUID, tenant_id: UUID | None) -> UUID:
        key = None
        if is_kid(kid):
            key = await self._keys.get(KeyRef(organisation_id, kid, tenant_id))
        if key is None:
            raise NotFound("There is no key of that id.", param="key")
        return key.id


def _whose(question: UsageQuestion) -> UUID:
    """Return whose places a report takes: its tenant's, or the organisation's."""
    return question.tenant_id or question.organisation_id


def _added_up(sums: Sequence[UsageSum]) -> UsageTotals:
    totals = [one.totals for one in sums]
    return UsageTotals(*(sum(map(column, totals)) for column in _COLUMNS))
