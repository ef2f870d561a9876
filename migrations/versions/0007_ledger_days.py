"""Let the server make and drop the days of the ledger without being the owner of its tables.

The functions run as whoever migrates, find nothing but this schema, and do one thing each. The code
before this revision is the owner itself, and goes on without them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_PLATFORM = "sluice_platform"

# One subtransaction: of a day that the default partition has rows of, nothing is left.
_MAKE = """
    CREATE FUNCTION make_ledger_day(day date) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
    DECLARE
        name text := 'usage_events_' || to_char(day, 'YYYYMMDD');
    BEGIN
        EXECUTE format('CREATE TABLE %I (LIKE usage_events INCLUDING ALL)', name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'ALTER TABLE usage_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            name, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC'
        );
        RETURN true;
    EXCEPTION WHEN check_violation THEN
        RETURN false;
    END $$
"""
# The oldest alone, as each holds the whole ledger until its transaction ends.
_DROP = """
    CREATE FUNCTION drop_ledger_day(oldest date) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
    DECLARE
        name text := (
            SELECT min(c.relname::text)
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'usage_events'::regclass
            AND c.relname ~ '^usage_events_[0-9]{{8}}$'
            AND right(c.relname, 8) < to_char(oldest, 'YYYYMMDD')
        );
    BEGIN
        IF name IS NOT NULL THEN
            EXECUTE format('DROP TABLE %I', name);
        END IF;
        RETURN name;
    END $$
"""


def upgrade() -> None:
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema())"))
    for statement in (_MAKE, _DROP):
        op.execute(statement.format(schema=schema))
    for function in ("make_ledger_day(date)", "drop_ledger_day(date)"):
        op.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {_PLATFORM}")


def downgrade() -> None:
    op.execute("DROP FUNCTION drop_ledger_day, make_ledger_day")
