"""Count the bytes of a batch's answers that are no file yet, against what its tenant may store.

Batches that run as this comes count those of their answers that come after it. The code before this
revision goes on: what it stores counts for nothing. It is a table, not a column of `batches`: that
code reads whatever columns these have, and what it has prepared would fail once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_PLATFORM, _APP = "sluice_platform", "sluice_app"


def upgrade() -> None:
    op.create_table(
        "batch_bytes",
        sa.Column(
            "batch_id", sa.Uuid(), sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON batch_bytes TO {_PLATFORM}")
    op.execute(f"GRANT SELECT ON batch_bytes TO {_APP}")
    op.execute("ALTER TABLE batch_bytes ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE batch_bytes FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant ON batch_bytes TO {_APP} USING "
        "(tenant_id = nullif(current_setting('sluice.tenant_id', true), '')::uuid)"
    )
    op.execute(f"CREATE POLICY platform ON batch_bytes TO {_PLATFORM} USING (true)")


def downgrade() -> None:
    op.drop_table("batch_bytes")
