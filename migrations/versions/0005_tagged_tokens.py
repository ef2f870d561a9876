"""Say of keys and admin tokens whether they carry a tag of ours.

The code before this revision names its columns, so it goes on; what it issues has no tag, which is
the default. The index is of what has none, which is read now and then.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = ("key_secrets", "admin_tokens")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(
            table, sa.Column("is_tagged", sa.Boolean(), nullable=False, server_default="false")
        )
    op.create_index(
        "ix_key_secrets_untagged_created_at",
        "key_secrets",
        ["created_at"],
        postgresql_where=sa.text("NOT is_tagged"),
    )


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "is_tagged")
