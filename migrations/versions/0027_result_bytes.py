"""Count the bytes of a batch's answers that are no file yet, against what its tenant may store.

Batches that run as this comes count those of their answers that come after it. The code before this
revision goes on: what it stores counts for nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "batches", sa.Column("result_bytes", sa.BigInteger, nullable=False, server_default="0")
    )


def downgrade() -> None:
    op.drop_column("batches", "result_bytes")
