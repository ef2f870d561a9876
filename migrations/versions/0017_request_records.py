"""Keep a record of finished requests for a day: partitions by the hour, dropped when they are old.

The code before this revision writes none and goes on. Hours are made ahead and dropped by two
functions of the owner's, as the days of the ledger are (0007); a default partition takes what has
none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_APP, _PLATFORM = "sluice_app", "sluice_platform"
_TIME = sa.DateTime(timezone=True)

# One subtransaction: of an hour that the default partition has rows of, nothing is left.
_MAKE = """
    CREATE FUNCTION make_record_hour(hour timestamptz) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
    DECLARE
        begins timestamptz := date_trunc('hour', hour, 'UTC');
        name text := 'request_records_' || to_char(begins AT TIME ZONE 'UTC', 'YYYYMMDDHH24');
    BEGIN
        EXECUTE format('CREATE TABLE %I (LIKE request_records INCLUDING ALL)', name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'ALTER TABLE request_records ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            name, begins, begins + interval '1 hour'
        );
        RETURN true;
    EXCEPTION WHEN check_violation THEN
        RETURN false;
    END $$
"""
# The oldest alone, as each holds the whole table until its transaction ends.
_DROP = """
    CREATE FUNCTION drop_record_hour(oldest timestamptz) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
    DECLARE
        name text := (
            SELECT min(c.relname::text)
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'request_records'::regclass
            AND c.relname ~ '^request_records_[0-9]{{10}}$'
            AND right(c.relname, 10) < to_char(oldest AT TIME ZONE 'UTC', 'YYYYMMDDHH24')
        );
    BEGIN
        IF name IS NOT NULL THEN
            EXECUTE format('DROP TABLE %I', name);
        END IF;
        RETURN name;
    END $$
"""


def upgrade() -> None:
    op.create_table(
        "request_records",
        sa.Column("request_id", sa.Uuid(), primary_key=True),
        sa.Column("at", _TIME, primary_key=True),
        # No foreign keys: it checks nothing, and is gone tomorrow.
        sa.Column("organisation_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid()),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text()),
        sa.Column("missed", pg.ARRAY(sa.Text()), nullable=False),
        sa.Column("is_preempted", sa.Boolean(), nullable=False),
        sa.Column("is_degraded", sa.Boolean(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("ttft_s", sa.Double()),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("details", pg.JSONB(), nullable=False),
        postgresql_partition_by="RANGE (at)",
    )
    op.execute("CREATE TABLE request_records_default PARTITION OF request_records DEFAULT")
    op.execute("ALTER TABLE request_records_default ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE request_records_default FORCE ROW LEVEL SECURITY")
    op.create_index("ix_request_records_at_request_id", "request_records", ["at", "request_id"])
    op.create_index(
        "ix_request_records_tenant_id_at_request_id",
        "request_records",
        ["tenant_id", "at", "request_id"],
    )
    op.execute(f"GRANT SELECT, INSERT, DELETE ON request_records TO {_PLATFORM}")
    op.execute(f"GRANT SELECT ON request_records TO {_APP}")
    op.execute("ALTER TABLE request_records ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE request_records FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant ON request_records TO {_APP} USING "
        "(tenant_id = nullif(current_setting('sluice.tenant_id', true), '')::uuid)"
    )
    op.execute(f"CREATE POLICY platform ON request_records TO {_PLATFORM} USING (true)")
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema())"))
    for statement in (_MAKE, _DROP):
        op.execute(statement.format(schema=schema))
    for function in ("make_record_hour(timestamptz)", "drop_record_hour(timestamptz)"):
        op.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {_PLATFORM}")


def downgrade() -> None:
    op.execute("DROP FUNCTION drop_record_hour, make_record_hour")
    op.drop_table("request_records")
