"""Say of batches what their makers asked for: an idempotency key, a life for the output files.

Items get what they count for while they wait, so that a tenant's can be summed and bounded. The
code before this revision makes neither batches nor items.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("idempotency_key", sa.Text()))
    op.add_column("batches", sa.Column("output_expires_after_s", sa.Integer()))
    op.add_column(
        "batches",
        sa.Column("enqueued_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    )
    op.add_column(
        "batch_items",
        sa.Column("enqueued_tokens", sa.Integer(), nullable=False, server_default="0"),
    )
    op.create_index(
        "ix_batches_idempotency_key",
        "batches",
        ["tenant_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_batches_idempotency_key", "batches")
    op.drop_column("batch_items", "enqueued_tokens")
    op.drop_column("batches", "enqueued_tokens")
    op.drop_column("batches", "output_expires_after_s")
    op.drop_column("batches", "idempotency_key")
