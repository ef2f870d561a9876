"""Make files, batches, their items and answers.

The code before this revision knows of none of them, and goes on. Items are updated twice each and
there may be a million: pages have room for the second version of a row, and vacuum comes early, as
whoever asks for the next items walks past all that is dead before them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_PLATFORM, _APP = "sluice_platform", "sluice_app"
_TABLES = ("files", "batches", "batch_items", "batch_results")
_BATCH_STATES = (
    "state IN ('validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired', "
    "'cancelling', 'cancelled')"
)
_ITEM_STATES = "state IN ('pending', 'running', 'done', 'failed', 'cancelled', 'expired')"


def upgrade() -> None:
    _create_files()
    _create_batches()
    _create_items()
    _create_results()
    everything = ", ".join(_TABLES)
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {everything} TO {_PLATFORM}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON files, batches TO {_APP}")
    op.execute(f"GRANT SELECT ON batch_items, batch_results TO {_APP}")
    for table in _TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant ON {table} TO {_APP} USING "
            "(tenant_id = nullif(current_setting('sluice.tenant_id', true), '')::uuid)"
        )
        op.execute(f"CREATE POLICY platform ON {table} TO {_PLATFORM} USING (true)")


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Uuid(), primary_key=True),
        _tenant_id(),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("is_ready", sa.Boolean(), nullable=False, server_default=sa.false()),
        _count("size_bytes"),
        sa.Column("sha256", sa.LargeBinary()),
        _created_at(),
        _time("expires_at"),
        sa.CheckConstraint("size_bytes >= 0", name="size_bytes"),
        sa.CheckConstraint("NOT is_ready OR length(sha256) = 32", name="sha256"),
    )
    op.create_index("ix_files_tenant_id_created_at", "files", ["tenant_id", "created_at", "id"])
    op.create_index(
        "ix_files_expires_at",
        "files",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), primary_key=True),
        _tenant_id(),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default="validating"),
        sa.Column("paused_for", sa.Text()),
        sa.Column("input_file_id", sa.Uuid(), nullable=False),
        sa.Column("output_file_id", sa.Uuid()),
        sa.Column("error_file_id", sa.Uuid()),
        sa.Column("completion_window_s", sa.Integer(), nullable=False),
        sa.Column("metadata", pg.JSONB()),
        sa.Column("errors", pg.JSONB()),
        sa.Column("price_ids", pg.JSONB(), nullable=False, server_default="{}"),
        *(
            sa.Column(name, sa.Integer(), nullable=False, server_default="0")
            for name in ("num_items", "num_done", "num_failed", "num_dropped")
        ),
        *(_count(name) for name in ("input_tokens", "cached_tokens", "output_tokens")),
        _created_at(),
        _time("expires_at", nullable=False),
        *(_time(f"{step}_at") for step in ("in_progress", "finalizing", "cancelling", "ended")),
        sa.CheckConstraint(_BATCH_STATES, name="state"),
        sa.CheckConstraint("num_done + num_failed + num_dropped <= num_items", name="num_items"),
    )
    op.create_index("ix_batches_tenant_id_created_at", "batches", ["tenant_id", "created_at", "id"])
    op.create_index(
        "ix_batches_open", "batches", ["id"], postgresql_where=sa.text("ended_at IS NULL")
    )


def _create_items() -> None:
    op.create_table(
        "batch_items",
        _batch_id(),
        sa.Column("line", sa.Integer(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default="pending"),
        sa.Column("generation", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("num_attempts", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("num_deaths", sa.SmallInteger(), nullable=False, server_default="0"),
        sa.Column("worker_id", sa.Uuid()),
        _time("lease_until"),
        _time("run_after", nullable=False, server_default=sa.text("now()")),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("offset_bytes", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.CheckConstraint(_ITEM_STATES, name="state"),
        sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="lease_until"),
    )
    op.execute(
        "ALTER TABLE batch_items SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, "
        "autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)"
    )
    op.create_index(
        "ix_batch_items_pending",
        "batch_items",
        ["batch_id", "place", "line"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_batch_items_lease_until",
        "batch_items",
        ["lease_until"],
        postgresql_where=sa.text("state = 'running'"),
    )


def _create_results() -> None:
    op.create_table(
        "batch_results",
        _batch_id(),
        sa.Column("line", sa.Integer(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )


def _tenant_id() -> sa.Column[object]:
    return sa.Column(
        "tenant_id", sa.Uuid(), sa.ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False
    )


def _batch_id() -> sa.Column[object]:
    return sa.Column(
        "batch_id", sa.Uuid(), sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True
    )


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def _time(name: str, **options: object) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), **options)  # type: ignore[arg-type]


def _created_at() -> sa.Column[object]:
    return _time("created_at", nullable=False, server_default=sa.text("now()"))
