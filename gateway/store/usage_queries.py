"""Sums of usage, answered from the ledger's hours and, at ragged ends, from its rows.

A question may begin and end at any moment. The whole hours in between come from `usage_hourly`;
what is left of an hour at either end is summed from `usage_events`, so that the answer is what
adding up the rows would give. Rows are added up by their own columns first, and what is left, a
hundredth of it, gets its labels and is added up by those.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Subquery,
    Table,
    Text,
    cast,
    func,
    literal,
    select,
    union_all,
)

from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum, UsageTotals
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.tables import keys, tenants, usage_events, usage_hourly

_BATCH_ROWS: Final = 1000
_HOUR: Final = timedelta(hours=1)
_SUMS: Final = ("input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests")
# What of a row a label is made of; what has none of its own is its column.
_MADE_OF: Final = {
    UsageBy.DAY: "hour",
    UsageBy.HOUR: "hour",
    UsageBy.TENANT: "tenant_id",
    UsageBy.KEY: "key_id",
}
# Adding up a large tenant's month in memory: sorted on disk it takes three times as long.
_ROOM: Final = select(func.set_config("work_mem", "16MB", True))


class SqlUsage:
    """Implement `UsageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sums(self, question: UsageQuestion) -> AsyncGenerator[Sequence[UsageSum], None]:
        tenant_id, num_by = question.tenant_id, len(question.by)
        opened = (
            self._database.platform(Purpose.REPORTS)
            if tenant_id is None
            else self._database.tenant(tenant_id, Purpose.REPORTS)
        )
        async with opened as connection:
            await connection.execute(_ROOM)
            result = await connection.stream(_query(question))
            async for rows in result.partitions(_BATCH_ROWS):
                yield [
                    UsageSum(tuple(row[:num_by]), UsageTotals(*map(int, row[num_by:])))
                    for row in rows
                ]


def _query(question: UsageQuestion) -> Select[*tuple[Any, ...]]:
    counted = _added_up(_counted(question), _columns(question))
    labelled = (
        select(
            *(_label(which, counted).label(which.value) for which in question.by),
            *(counted.c[name] for name in _SUMS),
        )
        .select_from(_named(counted, question))
        .subquery("labelled")
    )
    by = [labelled.c[which.value] for which in question.by]
    return (
        select(*by, *(func.sum(labelled.c[name]) for name in _SUMS))
        .group_by(*by)
        # An hour whose only request turned out to be another key's, or of another model.
        .having(func.sum(labelled.c.requests) > 0)
        .order_by(*(label.collate("C") for label in by))
    )


def _columns(question: UsageQuestion) -> list[str]:
    """Return what of a row the answer's labels are made of."""
    return sorted({_MADE_OF.get(which, which.value) for which in question.by})


def _added_up(counted: Subquery, columns: Sequence[str]) -> Subquery:
    groups = [counted.c[name] for name in columns]
    sums = [func.sum(counted.c[name]).label(name) for name in _SUMS]
    return select(*groups, *sums).group_by(*groups).subquery("added_up")


def _named(counted: Subquery, question: UsageQuestion) -> FromClause:
    """Join what labels are read from; left joins, as a ledger outlives who is in it."""
    named: FromClause = counted
    if UsageBy.KEY in question.by:
        named = named.outerjoin(keys, keys.c.id == counted.c.key_id)
    if UsageBy.TENANT in question.by:
        named = named.outerjoin(tenants, tenants.c.id == counted.c.tenant_id)
    return named


def _label(which: UsageBy, counted: Subquery) -> ColumnElement[str]:
    if which is UsageBy.DAY:
        return func.to_char(func.timezone("UTC", counted.c.hour), "YYYY-MM-DD")
    if which is UsageBy.HOUR:
        return func.to_char(func.timezone("UTC", counted.c.hour), 'YYYY-MM-DD"T"HH24:00:00"Z"')
    if which is UsageBy.TENANT:
        return func.coalesce(tenants.c.name, cast(counted.c.tenant_id, Text))
    if which is UsageBy.KEY:
        return func.coalesce(keys.c.kid, cast(counted.c.key_id, Text))
    label: ColumnElement[str] = counted.c[which.value]
    return label


def _counted(question: UsageQuestion) -> Subquery:
    """Return the hours of a question, and the rows of what it has of the hours at its ends."""
    first, last = _hour_after(question.start), _hour_before(question.end)
    parts = []
    if first < last:
        parts.append(_of_hours(question, first, last))
    if question.start < first:
        parts.append(_of_rows(question, question.start, min(first, question.end)))
    if first <= last < question.end:
        parts.append(_of_rows(question, last, question.end))
    return union_all(*parts).subquery("counted")


def _of_hours(question: UsageQuestion, start: datetime, end: datetime) -> Select[*tuple[Any, ...]]:
    hours = usage_hourly.c
    return select(
        *(hours[name] for name in _columns(question)),
        *(hours[name] for name in _SUMS),
    ).where(hours.hour >= start, hours.hour < end, *_wanted(usage_hourly, question))


def _of_rows(question: UsageQuestion, start: datetime, end: datetime) -> Select[*tuple[Any, ...]]:
    rows = usage_events.c
    return select(
        *(
            func.date_trunc("hour", rows.at, "UTC").label(name) if name == "hour" else rows[name]
            for name in _columns(question)
        ),
        *(rows[name] for name in _SUMS[:-1]),
        literal(1).label("requests"),
    ).where(rows.at >= start, rows.at < end, *_wanted(usage_events, question))


def _wanted(table: Table, question: UsageQuestion) -> list[ColumnElement[bool]]:
    wanted = {
        "organisation_id": question.organisation_id,
        "tenant_id": question.tenant_id,
        "key_id": question.key_id,
        "model": question.model,
    }
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


def _hour_before(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _hour_after(moment: datetime) -> datetime:
    hour = _hour_before(moment)
    return hour if hour == moment else hour + _HOUR
