"""Sums of usage, answered from the ledger's days and, at ragged ends, from its hours and rows.

A question may begin and end at any moment. The whole days in between come from `usage_daily`, but
where hours are to be told apart; what is left of a day at either end comes from `usage_hourly`, and
what is left of an hour is summed from `usage_events`, so that the answer is what adding up the rows
would give. Rows are added up by their own columns first, and what is left gets its labels and is
added up by those. However many ways they are told apart, they are read once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    DateTime,
    FromClause,
    Select,
    Subquery,
    Table,
    Text,
    cast,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    union_all,
)

from gateway.domain.usage import UsageBy, UsageQuestion, UsageSum, UsageTotals
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.tables import keys, tenants, usage_daily, usage_events, usage_hourly

_BATCH_ROWS: Final = 1000
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_SUMS: Final = ("input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests")
# What of a row a label is made of; what has none of its own is its column.
_MADE_OF: Final = {
    UsageBy.DAY: "day",
    UsageBy.HOUR: "hour",
    UsageBy.TENANT: "tenant_id",
    UsageBy.KEY: "key_id",
}
_SOME_DAY: Final = literal(datetime(2000, 1, 1, tzinfo=UTC), DateTime(timezone=True))
# Adding up a large tenant's month in memory: sorted on disk it takes three times as long. Planned
# each time: a plan for any tenant's month, made once, expects a small one, and sorts the large.
_FOR_MANY: Final = select(
    func.set_config("work_mem", "16MB", True),
    func.set_config("plan_cache_mode", "force_custom_plan", True),
)


class SqlUsage:
    """Implement `UsageStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sums(self, question: UsageQuestion) -> AsyncGenerator[Sequence[UsageSum], None]:
        async with aclosing(self.sums_by(question, [question.by])) as batches:
            async for batch in batches:
                yield [one for _, one in batch]

    async def sums_by(
        self, question: UsageQuestion, ways: Sequence[tuple[UsageBy, ...]]
    ) -> AsyncGenerator[Sequence[tuple[int, UsageSum]], None]:
        tenant_id, by, columns = question.tenant_id, _all_of(ways), _columns(ways)
        # By what a row leaves out: of which way it is, and where its labels are.
        read = {
            _left_out(columns, way): (number, [1 + by.index(which) for which in way])
            for number, way in enumerate(ways)
        }
        opened = (
            self._database.platform(Purpose.REPORTS)
            if tenant_id is None
            else self._database.tenant(tenant_id, Purpose.REPORTS)
        )
        async with opened as connection:
            await connection.execute(_FOR_MANY)
            result = await connection.stream(_query(question, ways))
            async for rows in result.partitions(_BATCH_ROWS):
                batch = []
                for row in rows:
                    way, places = read[row[0]]
                    totals = UsageTotals(*map(int, row[1 + len(by) :]))
                    batch.append((way, UsageSum(tuple([row[place] for place in places]), totals)))
                yield batch


def _query(
    question: UsageQuestion, ways: Sequence[tuple[UsageBy, ...]]
) -> Select[*tuple[Any, ...]]:
    """Return a statement whose rows say what they leave out, then their labels, then the sums."""
    counted = _added_up(_counted(question, _columns(ways)), ways)
    by = _all_of(ways)
    labelled = (
        select(
            counted.c.left_out,
            *(_label(which, counted).label(which.value) for which in by),
            *(counted.c[name] for name in _SUMS),
        )
        .select_from(_named(counted, by))
        .subquery("labelled")
    )
    labels = [labelled.c[which.value] for which in by]
    return (
        select(labelled.c.left_out, *labels, *(func.sum(labelled.c[name]) for name in _SUMS))
        .group_by(labelled.c.left_out, *labels)
        # An hour whose only request turned out to be another key's, or of another model.
        .having(func.sum(labelled.c.requests) > 0)
        .order_by(labelled.c.left_out, *(label.collate("C") for label in labels))
    )


def _all_of(ways: Sequence[tuple[UsageBy, ...]]) -> list[UsageBy]:
    return list(dict.fromkeys(which for way in ways for which in way))


def _columns(ways: Sequence[tuple[UsageBy, ...]]) -> list[str]:
    """Return what of a row the answer's labels are made of."""
    return sorted({_MADE_OF.get(which, which.value) for which in _all_of(ways)})


def _left_out(columns: Sequence[str], way: Sequence[UsageBy]) -> int:
    """Return what SQL's GROUPING says of rows that are told apart so: a bit for each column."""
    told = {_MADE_OF.get(which, which.value) for which in way}
    return sum((name not in told) << place for place, name in enumerate(reversed(columns)))


def _added_up(counted: Subquery, ways: Sequence[tuple[UsageBy, ...]]) -> Subquery:
    names = _columns(ways)
    groups = [counted.c[name] for name in names]
    sums = [func.sum(counted.c[name]).label(name) for name in _SUMS]
    if len(ways) == 1:
        nothing: ColumnElement[int] = literal_column("0").label("left_out")
        return select(nothing, *groups, *sums).group_by(*groups).subquery("added_up")
    sets = [tuple_(*(counted.c[name] for name in _columns([way]))) for way in ways]
    return (
        select(func.grouping(*groups).label("left_out"), *groups, *sums)
        .group_by(func.grouping_sets(*sets))
        .subquery("added_up")
    )


def _named(counted: Subquery, by: Sequence[UsageBy]) -> FromClause:
    """Join what labels are read from; left joins, as a ledger outlives who is in it."""
    named: FromClause = counted
    if UsageBy.KEY in by:
        named = named.outerjoin(keys, keys.c.id == counted.c.key_id)
    if UsageBy.TENANT in by:
        named = named.outerjoin(tenants, tenants.c.id == counted.c.tenant_id)
    return named


def _label(which: UsageBy, counted: Subquery) -> ColumnElement[str]:
    if which is UsageBy.DAY:
        return func.to_char(func.timezone("UTC", counted.c.day), "YYYY-MM-DD")
    if which is UsageBy.HOUR:
        return func.to_char(func.timezone("UTC", counted.c.hour), 'YYYY-MM-DD"T"HH24:00:00"Z"')
    if which is UsageBy.TENANT:
        return func.coalesce(tenants.c.name, cast(counted.c.tenant_id, Text))
    if which is UsageBy.KEY:
        return func.coalesce(keys.c.kid, cast(counted.c.key_id, Text))
    label: ColumnElement[str] = counted.c[which.value]
    return label


def _counted(question: UsageQuestion, columns: Sequence[str]) -> Subquery:
    """Return the days of a question, and of its ends the hours and the rows that are no whole day
    or hour.
    """
    start, end = question.start, question.end
    parts = []
    first, last = _after(start, _HOUR), _before(end, _HOUR)
    first_day, last_day = _after(start, _DAY), _before(end, _DAY)
    if first_day < last_day and "hour" not in columns:
        parts.append(_of_sums(usage_daily, question, columns, first_day, last_day))
        hours = [(first, first_day), (last_day, last)]
    else:
        hours = [(first, last)]
    parts += [
        _of_sums(usage_hourly, question, columns, begin, until)
        for begin, until in hours
        if begin < until
    ]
    if start < first:
        parts.append(_of_rows(question, columns, start, min(first, end)))
    if first <= last < end:
        parts.append(_of_rows(question, columns, last, end))
    return union_all(*parts).subquery("counted")


def _of_sums(
    table: Table, question: UsageQuestion, columns: Sequence[str], start: datetime, end: datetime
) -> Select[*tuple[Any, ...]]:
    """Return the sums of hours or of days."""
    [at] = (table.c[name] for name in ("hour", "day") if name in table.c)
    return select(
        *(table.c[name] if name in table.c else _day(at) for name in columns),
        *(table.c[name] for name in _SUMS),
    ).where(at >= start, at < end, *_wanted(table, question))


def _of_rows(
    question: UsageQuestion, columns: Sequence[str], start: datetime, end: datetime
) -> Select[*tuple[Any, ...]]:
    rows = usage_events.c
    made: dict[str, ColumnElement[Any]] = {
        "day": _day(rows.at),
        "hour": func.date_trunc("hour", rows.at, "UTC").label("hour"),
    }
    return select(
        *(made[name] if name in made else rows[name] for name in columns),
        *(rows[name] for name in _SUMS[:-1]),
        literal(1).label("requests"),
    ).where(rows.at >= start, rows.at < end, *_wanted(usage_events, question))


def _day(moment: ColumnElement[datetime]) -> ColumnElement[datetime]:
    """Return the day of a moment in UTC, whose days are all as long.

    Asking a zone for its days instead takes two thirds longer for the whole of a large sum.
    """
    return func.date_bin(_DAY, moment, _SOME_DAY).label("day")


def _wanted(table: Table, question: UsageQuestion) -> list[ColumnElement[bool]]:
    wanted = {
        "organisation_id": question.organisation_id,
        "tenant_id": question.tenant_id,
        "key_id": question.key_id,
        "model": question.model,
    }
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


def _before(moment: datetime, length: timedelta) -> datetime:
    """Return when the hour, or the day, of a moment began in UTC."""
    hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return hour if length == _HOUR else hour.replace(hour=0)


def _after(moment: datetime, length: timedelta) -> datetime:
    begun = _before(moment, length)
    return begun if begun == moment else begun + length
