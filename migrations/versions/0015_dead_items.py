"""Say of the items that killed their workers since when they wait for an operator.

The code before this revision has them wait as well, and says nothing of when that began. Those that
wait already are said to since now.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batch_items", sa.Column("dead_at", sa.DateTime(timezone=True)))
    op.execute(
        "UPDATE batch_items SET dead_at = now() WHERE state = 'pending' AND run_after = 'infinity'"
    )
    op.create_index(
        "ix_batch_items_dead",
        "batch_items",
        ["batch_id", "line"],
        postgresql_where=sa.text("state = 'pending' AND dead_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_batch_items_dead", "batch_items")
    op.drop_column("batch_items", "dead_at")
