"""Find the few rows of the ledger that are of lost requests.

Counters that are loaded from the ledger set them apart, as such a request may run still. While a
day's index is built nothing is written into it, which is the time of one read of that day: bills
wait in the gateways' journals meanwhile. The code before this revision goes on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_usage_events_lost",
        "usage_events",
        ["at"],
        postgresql_where=sa.text("outcome = 'lost'"),
    )


def downgrade() -> None:
    op.drop_index("ix_usage_events_lost", "usage_events")
