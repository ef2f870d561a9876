"""Give keys a highest service tier, and tenants promises of latency.

The code before this revision names its columns, so it goes on reading; what it inserts gets the
default tier and no promises. Small tables: the checks are validated on the spot, under the
`lock_timeout` that `gateway.store.migrate` has set.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SLO_COLUMNS = ("ttft_ms", "tpot_ms", "max_gap_ms")


def upgrade() -> None:
    for column in _SLO_COLUMNS:
        op.add_column("tenants", sa.Column(column, sa.Double()))
        op.create_check_constraint(column, "tenants", f"{column} > 0 AND {column} < 'Infinity'")
    op.add_column(
        "keys", sa.Column("max_tier", sa.Text(), nullable=False, server_default="default")
    )
    op.create_check_constraint("max_tier", "keys", "max_tier IN ('priority', 'default', 'flex')")


def downgrade() -> None:
    op.drop_column("keys", "max_tier")
    for column in reversed(_SLO_COLUMNS):
        op.drop_column("tenants", column)
