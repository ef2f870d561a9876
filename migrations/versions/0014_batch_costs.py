"""Sum on batches what their items have cost, and what they would have at the full price.

Batches that ended before this revision say that they cost nothing: the ledger has what they did.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("cost_nano_usd", "full_nano_usd"):
        op.add_column(
            "batches", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        )


def downgrade() -> None:
    op.drop_column("batches", "full_nano_usd")
    op.drop_column("batches", "cost_nano_usd")
