"""Say of batches who validates or finalises them until when, and which models they ask for.

A tenant's batches that have not ended are counted as it makes another. The code before this
revision makes no batches.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("lease_until", sa.DateTime(timezone=True)))
    op.add_column("batches", sa.Column("models", pg.JSONB(), nullable=False, server_default="[]"))
    op.create_index(
        "ix_batches_open_of_tenant",
        "batches",
        ["tenant_id"],
        postgresql_where=sa.text("ended_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_batches_open_of_tenant", "batches")
    op.drop_column("batches", "models")
    op.drop_column("batches", "lease_until")
