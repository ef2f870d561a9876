"""Keep what operators set of the schedulers, for all gateways and over restarts.

The code before this revision sets each process by itself and goes on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_PLATFORM = "sluice_platform"


def upgrade() -> None:
    op.create_table(
        "scheduler_policies",
        sa.Column(
            "organisation_id", sa.Uuid(), sa.ForeignKey("organisations.id"), primary_key=True
        ),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("every", JSONB(), nullable=False),
        sa.Column("models", JSONB(), nullable=False),
        sa.Column(
            "changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
        sa.CheckConstraint("jsonb_typeof(every) = 'object'", name="every"),
        sa.CheckConstraint("jsonb_typeof(models) = 'object'", name="models"),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON scheduler_policies TO {_PLATFORM}")
    op.execute("ALTER TABLE scheduler_policies ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE scheduler_policies FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY platform ON scheduler_policies TO {_PLATFORM} USING (true)")


def downgrade() -> None:
    op.drop_table("scheduler_policies")
