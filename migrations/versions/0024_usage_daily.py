"""Keep sums of the ledger by day beside those by hour, and have the database itself keep them so.

Triggers carry each change of an hour to its day, in the statement that makes it: the code before
this revision, which knows of hours alone, goes on, and days are right whoever writes. A statement
that inserts some hours and adds to others has two triggers, one after the other. Each has rows of
its own (`of_inserts`), in the order of their key, so that no two statements wait for each other in
a circle.

What there is, is summed while the ledger is written. Then the triggers are made, which holds the
ledger's writers off until this commits, and days are summed again of which an hour was changed
meanwhile: that is one walk through the hours. A statement is
about one day, as each has a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_APP, _PLATFORM = "sluice_app", "sluice_platform"
_KEY = "organisation_id, tenant_id, key_id, model, tier, is_batch"
_NAMES = ("input_tokens", "cached_tokens", "output_tokens", "nano_usd", "requests")
_SUMS = ", ".join(_NAMES)

_SPAN = sa.text("SELECT date_trunc('day', min(hour), 'UTC'), max(hour) FROM usage_hourly")
_OF_DAY = sa.bindparam("day", type_=sa.DateTime(timezone=True))
# Where a row was written before its transaction numbers began anew, a day too many is found.
_CHANGED = sa.text(
    "SELECT EXISTS (SELECT FROM usage_hourly WHERE hour >= :day AND hour < :day + interval '1 day' "
    "AND age(xmin) <= age(xid(CAST(:seen AS xid8))))"
).bindparams(_OF_DAY)
_SUM = """
    INSERT INTO usage_daily (day, of_inserts, {key}, {sums})
    SELECT :day, true, {key}, {added} FROM usage_hourly
    WHERE hour >= :day AND hour < :day + interval '1 day' GROUP BY {key}
    ON CONFLICT (day, {key}, of_inserts) DO UPDATE SET {replaced}
"""
_FUNCTION = """
    CREATE FUNCTION add_to_days() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN {of_insert};
        ELSIF TG_OP = 'UPDATE' THEN {of_update};
        ELSE {of_delete};
        END IF;
        RETURN NULL;
    END $$
"""
_ADD = """
    INSERT INTO {schema}.usage_daily AS kept (day, {key}, of_inserts, {sums})
    SELECT day, {key}, {of_inserts}, {added} FROM ({counted}) AS counted
    GROUP BY day, {key} ORDER BY day, {key}
    ON CONFLICT (day, {key}, of_inserts) DO UPDATE SET {raised}
"""
_COUNTED = "SELECT date_trunc('day', hour, 'UTC') AS day, {key}, {signed} FROM {hours}"
_TRIGGER = """
    CREATE TRIGGER days_{event} AFTER {event} ON usage_hourly REFERENCING {seen}
    FOR EACH STATEMENT EXECUTE FUNCTION add_to_days()
"""
_EVENTS = {
    "insert": "NEW TABLE AS new_hours",
    "update": "OLD TABLE AS old_hours NEW TABLE AS new_hours",
    "delete": "OLD TABLE AS old_hours",
}


def upgrade() -> None:
    _create_table()
    _allow()
    with _as_platform() as connection:
        # Whoever wrote before it is seen by every statement from here on.
        seen = connection.scalar(sa.text("SELECT pg_snapshot_xmin(pg_current_snapshot())"))
        _sum(connection, _days(connection))
    for column in ("tenant_id", "key_id"):
        op.create_index(f"ix_usage_daily_{column}_day", "usage_daily", [column, "day"])
    _create_triggers()
    with _as_platform() as connection:
        _sum(connection, (day for day in _days(connection) if _is_changed(connection, day, seen)))


def downgrade() -> None:
    for event in _EVENTS:
        op.execute(f"DROP TRIGGER days_{event} ON usage_hourly")
    op.execute("DROP FUNCTION add_to_days")
    op.drop_table("usage_daily")


def _create_table() -> None:
    op.create_table(
        "usage_daily",
        sa.Column("day", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("organisation_id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), primary_key=True),
        sa.Column("key_id", sa.Uuid(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("tier", sa.Text(), primary_key=True),
        sa.Column("is_batch", sa.Boolean(), primary_key=True),
        sa.Column("of_inserts", sa.Boolean(), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _NAMES),
    )


def _allow() -> None:
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON usage_daily TO {_PLATFORM}")
    op.execute(f"GRANT SELECT ON usage_daily TO {_APP}")
    op.execute("ALTER TABLE usage_daily ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE usage_daily FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant ON usage_daily TO {_APP} USING "
        "(tenant_id = nullif(current_setting('sluice.tenant_id', true), '')::uuid)"
    )
    op.execute(f"CREATE POLICY platform ON usage_daily TO {_PLATFORM} USING (true)")


@contextmanager
def _as_platform() -> Iterator[sa.Connection]:
    """Be a role that a policy lets at the rows: the owner is bound by them, and sees none."""
    op.execute(f"SET LOCAL ROLE {_PLATFORM}")
    yield op.get_bind()
    op.execute("RESET ROLE")


def _days(connection: sa.Connection) -> Iterator[datetime]:
    first, last = connection.execute(_SPAN).one()
    while first is not None and first <= last:
        yield first
        first += timedelta(days=1)


def _is_changed(connection: sa.Connection, day: datetime, seen: int) -> bool:
    return bool(connection.scalar(_CHANGED, {"day": day, "seen": seen}))


def _sum(connection: sa.Connection, days: Iterable[datetime]) -> None:
    """Put the sums of days in the place of those that there are."""
    replaced = ", ".join(f"{name} = excluded.{name}" for name in _NAMES)
    filled = _SUM.format(key=_KEY, sums=_SUMS, added=_added(), replaced=replaced)
    statement = sa.text(filled).bindparams(_OF_DAY)
    for day in days:
        connection.execute(statement, {"day": day})


def _create_triggers() -> None:
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema())"))
    raised = ", ".join(f"{name} = kept.{name} + excluded.{name}" for name in _NAMES)

    def add(signs: dict[str, int], *, of_inserts: bool = False) -> str:
        counted = " UNION ALL ".join(_counted(hours, sign) for hours, sign in signs.items())
        return _ADD.format(
            schema=schema,
            key=_KEY,
            sums=_SUMS,
            added=_added(),
            of_inserts=str(of_inserts).lower(),
            counted=counted,
            raised=raised,
        )

    op.execute(
        _FUNCTION.format(
            of_insert=add({"new_hours": 1}, of_inserts=True),
            of_update=add({"old_hours": -1, "new_hours": 1}),
            of_delete=add({"old_hours": -1}),
        )
    )
    for event, seen in _EVENTS.items():
        op.execute(_TRIGGER.format(event=event, seen=seen))


def _counted(hours: str, sign: int) -> str:
    signed = ", ".join(f"{sign} * {name} AS {name}" for name in _NAMES)
    return _COUNTED.format(key=_KEY, signed=signed, hours=hours)


def _added() -> str:
    return ", ".join(f"sum({name})" for name in _NAMES)
