"""The ledger in PostgreSQL: a row a request, and sums by the hour that always agree with them.

Rows and their sums change in one statement, in which triggers change the sums of days (revision
0024). The rows travel as one JSON document, which costs the gateway half of what sixteen arrays do.
All tables are written in the order of their keys, rows before hours before days, so that two
gateways wait for each other but never in a circle.

A request is counted once, however often it is inserted: only rows that were new are summed. Where
some were not, a second transaction looks whether one of them stands for a request that was given
up as lost, puts the true row in its place, and adds the difference. It must be a second statement:
the first cannot see a row that another gateway commits while it runs.

The answer to a keyed request goes to its record in the transaction of its row. Where another run
has answered that request, the row says so by billing nothing. A row of an item that was refused
before its model was known brings its result alone: a refused request is not in the ledger either.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    CTE,
    Select,
    SelectBase,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    cast,
    column,
    exists,
    func,
    literal,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.limits import LedgerSnapshot, Sums, Told
from gateway.domain.quota import Scope
from gateway.domain.usage import ItemRow, KeyedRow, Outcome, UsageRow
from gateway.errors import InternalFailure
from gateway.store.batch_queue import item_results
from gateway.store.database import Database
from gateway.store.idempotency import answer_records
from gateway.store.pools import Purpose
from gateway.store.sql_faults import sqlstate_of
from gateway.store.tables import usage_events, usage_hourly

logger = logging.getLogger(__name__)

_KEY = [one.name for one in usage_hourly.primary_key if one.name != "hour"]
_SUMS = ("input_tokens", "cached_tokens", "output_tokens", "nano_usd")

# SQLSTATE's classes of values that fit no column and of constraints that do not hold.
_REFUSED = ("22", "23")

_encoder = msgspec.json.Encoder()


class SqlLedger:
    """Implement `LedgerStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        if not rows:
            return 0
        try:
            async with self._database.platform(Purpose.LEDGER) as connection:
                bills = await _bills(connection, rows)
                given = {"rows": _encoder.encode(bills).decode()}
                inserted: int = (await connection.execute(_INSERT, given)).scalar_one()
            if inserted == len(bills):
                return inserted
            async with self._database.platform(Purpose.LEDGER) as connection:
                replaced: int = (await connection.execute(_REPLACE_LOST, given)).scalar_one()
        except DBAPIError as exc:
            if not sqlstate_of(exc).startswith(_REFUSED):
                raise
            raise InternalFailure(detail=f"the ledger refuses a row: {sqlstate_of(exc)}") from exc
        return inserted + replaced

    async def used(self, wanted: Sequence[tuple[Scope, int, int]]) -> Sequence[Sums]:
        if not wanted:
            return []
        async with self._database.platform(Purpose.LEDGER) as connection:
            return await _used(connection, wanted)

    async def booked(self, ids: Collection[UUID], since_s: float) -> Mapping[UUID, Told]:
        async with self._database.platform(Purpose.LEDGER) as connection:
            return await _booked(connection, ids, since_s)

    async def snapshot(
        self, wanted: Sequence[tuple[Scope, int, int]], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        if not wanted:
            return LedgerSnapshot([], [], {})
        async with self._database.snapshot(Purpose.LEDGER) as connection:
            used = await _used(connection, wanted)
            vouched = await _vouched(connection, wanted)
            booked = await _booked(connection, ids, since_s) if ids else {}
        return LedgerSnapshot(used, vouched, booked)


async def _used(
    connection: AsyncConnection, wanted: Sequence[tuple[Scope, int, int]]
) -> Sequence[Sums]:
    assert all(not start % 3600 and not end % 3600 for _, start, end in wanted), "whole hours"
    found = await connection.execute(_USED, _asked(wanted))
    return [Sums(*map(int, sums)) for sums in found]


async def _vouched(
    connection: AsyncConnection, wanted: Sequence[tuple[Scope, int, int]]
) -> Sequence[Mapping[UUID, Sums]]:
    arguments = _asked(wanted)
    # For all of them at once, as days without any are not looked through.
    bounds = {"since": min(arguments["starts"]), "until": max(arguments["ends"])}
    found: list[dict[UUID, Sums]] = [{} for _ in wanted]
    for row in await connection.execute(_VOUCHED, {**arguments, **bounds}):
        found[row.place - 1][row.request_id] = Sums(1, row.tokens, row.nano_usd)
    return found


async def _booked(
    connection: AsyncConnection, ids: Collection[UUID], since_s: float
) -> Mapping[UUID, Told]:
    row = usage_events.c
    used = (row.input_tokens, row.cached_tokens, row.output_tokens, row.nano_usd)
    query = select(row.request_id, *used).where(
        usage_events.c.request_id == any_(literal(list(ids), ARRAY(Uuid))),
        # Without it every day's partition would be looked through.
        usage_events.c.at >= datetime.fromtimestamp(since_s, UTC),
    )
    found = await connection.execute(query)
    # The ledger does not say what cached tokens weigh in a rate: as after a crash, nothing.
    return {
        one.request_id: Told(
            one.input_tokens,
            one.cached_tokens,
            one.output_tokens,
            one.nano_usd,
            one.input_tokens - one.cached_tokens,
        )
        for one in found
    }


def _asked(wanted: Sequence[tuple[Scope, int, int]]) -> dict[str, list[Any]]:
    return {
        "kinds": [scope.kind.value for scope, _, _ in wanted],
        "ids": [scope.id for scope, _, _ in wanted],
        "starts": [datetime.fromtimestamp(start, UTC) for _, start, _ in wanted],
        "ends": [datetime.fromtimestamp(end, UTC) for _, _, end in wanted],
    }


async def _bills(connection: AsyncConnection, rows: Sequence[UsageRow]) -> Sequence[UsageRow]:
    """Store the answers that come with rows, and return what is to be billed."""
    keyed = [row for row in rows if isinstance(row, KeyedRow)]
    items = [row for row in rows if isinstance(row, ItemRow)]
    late = await answer_records(connection, keyed) if keyed else set()
    for request_id in late:
        logger.warning("request %s was answered by another run: not billed", request_id.hex)
    late_items = await _late_items(connection, items)
    if late_items:
        # After an outage, or a kill, that may be all that were under way.
        num_late = len(late_items)
        logger.warning("%d items of batches were given up, or run by others: not billed", num_late)
        late |= late_items
    # One without a model has reserved nothing: no row can be there that is given up as lost.
    bills = [row.bill() for row in rows if row.model]
    return [_unbilled(bill) if bill.request_id in late else bill for bill in bills]


async def _late_items(connection: AsyncConnection, rows: Sequence[ItemRow]) -> set[UUID]:
    """Store results of items; return the requests whose runs were not theirs any longer."""
    stored = await item_results(connection, rows)
    return {row.request_id for row in rows if row.item.run not in stored}


def _unbilled(bill: UsageRow) -> UsageRow:
    """Bill nothing; a row all the same, which takes the place of one that is lost."""
    return replace(
        bill, input_tokens=0, cached_tokens=0, output_tokens=0, nano_usd=0, outcome=Outcome.FAILED
    )


_given = (
    func.jsonb_to_recordset(cast(bindparam("rows", type_=Text), JSONB))
    .table_valued(*(column(one.name, one.type) for one in usage_events.c))
    .render_derived(name="given", with_types=True)
)
_same_request = and_(
    usage_events.c.request_id == _given.c.request_id, usage_events.c.at == _given.c.at
)
_was_lost = usage_events.c.outcome == Outcome.LOST.value
_is_known = _given.c.outcome != Outcome.LOST.value


def _insert() -> Select[int]:
    inserted = (
        insert(usage_events)
        .from_select(
            usage_events.c.keys(), select(_given).order_by(_given.c.request_id, _given.c.at)
        )
        .on_conflict_do_nothing()
        .returning(*usage_events.c)
        .cte("inserted")
    )
    return select(func.count()).select_from(inserted).add_cte(_add_to_hours(_counted(inserted, 1)))


def _replace_lost() -> Select[int]:
    lost = (
        select(usage_events)
        .where(_was_lost, exists().where(_same_request, _is_known))
        .order_by(usage_events.c.request_id, usage_events.c.at)
        .with_for_update()
        .cte("lost")
    )
    replaced = (
        update(usage_events)
        .where(
            usage_events.c.request_id == lost.c.request_id,
            usage_events.c.at == lost.c.at,
            _same_request,
            _is_known,
        )
        .values({one: _given.c[one.name] for one in usage_events.c if not one.primary_key})
        .returning(*usage_events.c)
        .cte("replaced")
    )
    difference = union_all(_counted(lost, -1), _counted(replaced, 1))
    return select(func.count()).select_from(replaced).add_cte(_add_to_hours(difference))


def _counted(rows: CTE, sign: int) -> Select[*tuple[object, ...]]:
    return select(
        func.date_trunc("hour", rows.c.at, "UTC").label("hour"),
        *(rows.c[name] for name in _KEY),
        *((sign * rows.c[name]).label(name) for name in _SUMS),
        literal(sign).label("requests"),
    )


def _add_to_hours(counted: SelectBase) -> CTE:
    counts = counted.subquery("counted")
    names = ["hour", *_KEY]
    key = [counts.c[name] for name in names]
    sums = [*_SUMS, "requests"]
    added = select(*key, *(func.sum(counts.c[name]) for name in sums)).group_by(*key).order_by(*key)
    upsert = insert(usage_hourly).from_select([*names, *sums], added)
    return (
        upsert.on_conflict_do_update(
            index_elements=names,
            set_={name: usage_hourly.c[name] + upsert.excluded[name] for name in sums},
        )
        .returning(usage_hourly.c.hour)
        .cte("added")
    )


_INSERT, _REPLACE_LOST = _insert(), _replace_lost()

# For each scope its own walk along an index: the kind is asked before any row is read.
_USED = text(
    """
    SELECT coalesce(sum(requests), 0), coalesce(sum(input_tokens) + sum(output_tokens), 0),
        coalesce(sum(nano_usd), 0)
    FROM unnest(
        CAST(:kinds AS text[]), CAST(:ids AS uuid[]),
        CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[])
    ) WITH ORDINALITY AS wanted (kind, id, start_at, end_at, place)
    LEFT JOIN LATERAL (
        SELECT requests, input_tokens, output_tokens, nano_usd FROM usage_hourly
        WHERE kind = 'key' AND key_id = id AND hour >= start_at AND hour < end_at
        UNION ALL
        SELECT requests, input_tokens, output_tokens, nano_usd FROM usage_hourly
        WHERE kind = 'tenant' AND tenant_id = id AND hour >= start_at AND hour < end_at
        UNION ALL
        SELECT requests, input_tokens, output_tokens, nano_usd FROM usage_hourly
        WHERE kind = 'organisation' AND organisation_id = id
        AND hour >= start_at AND hour < end_at
        UNION ALL
        SELECT requests, input_tokens, output_tokens, nano_usd FROM usage_hourly
        WHERE kind = 'platform' AND hour >= start_at AND hour < end_at
    ) AS found ON true
    GROUP BY place ORDER BY place
    """
)

# Few rows are: an index has them alone.
_VOUCHED = text(
    """
    SELECT place, request_id, input_tokens + output_tokens AS tokens, nano_usd
    FROM unnest(
        CAST(:kinds AS text[]), CAST(:ids AS uuid[]),
        CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[])
    ) WITH ORDINALITY AS wanted (kind, id, start_at, end_at, place)
    JOIN usage_events ON at >= start_at AND at < end_at AND CASE kind
        WHEN 'key' THEN key_id = id
        WHEN 'tenant' THEN tenant_id = id
        WHEN 'organisation' THEN organisation_id = id
        ELSE true
    END
    WHERE outcome = 'lost' AND at >= :since AND at < :until
    """
)
