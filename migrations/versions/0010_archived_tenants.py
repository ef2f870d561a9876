"""Let a tenant be archived: out of use for good, its ledger kept.

An archived tenant has no live key, no plan and no org, and a name that no tenant can be given, so
the code before this revision, which knows nothing of it, has nothing left to do with it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("archived_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("tenants", "archived_at")
