"""Store responses that a later request may go on from.

The code before this revision stores none and goes on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_APP, _PLATFORM = "sluice_app", "sluice_platform"


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column(
            "tenant_id",
            sa.Uuid(),
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            nullable=False,
        ),
        # No foreign key: the one before may go first.
        sa.Column("previous_id", sa.Uuid()),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("chain_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.Integer(), nullable=False),
        sa.Column("sent", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
    )
    # Encrypted: there is nothing to compress.
    for column in ("sent", "answer"):
        op.execute(f"ALTER TABLE responses ALTER COLUMN {column} SET STORAGE EXTERNAL")
    op.create_index("ix_responses_created_at", "responses", ["created_at"])
    op.create_index(
        "ix_responses_tenant_id_created_at",
        "responses",
        ["tenant_id", "created_at", "id"],
        postgresql_include=["num_bytes"],
    )
    op.execute(f"GRANT SELECT, INSERT, DELETE ON responses TO {_APP}")
    op.execute(f"GRANT SELECT, UPDATE, DELETE ON responses TO {_PLATFORM}")
    op.execute("ALTER TABLE responses ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE responses FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant ON responses TO {_APP} USING "
        "(tenant_id = nullif(current_setting('sluice.tenant_id', true), '')::uuid)"
    )
    op.execute(f"CREATE POLICY platform ON responses TO {_PLATFORM} USING (true)")


def downgrade() -> None:
    op.drop_table("responses")
