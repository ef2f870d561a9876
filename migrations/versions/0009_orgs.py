"""Give tenants an owner that they share the machine's service as.

The code before this revision names its columns, so it goes on as it was: what it inserts belongs
to none, and stands by itself.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_PLATFORM, _APP = "sluice_platform", "sluice_app"


def upgrade() -> None:
    op.create_table(
        "orgs",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("organisation_id", sa.Uuid(), sa.ForeignKey("organisations.id"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False, server_default="1"),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.text("now()"),
        ),
        sa.UniqueConstraint("organisation_id", "name"),
        sa.CheckConstraint("weight > 0 AND weight < 'Infinity'", name="weight"),
    )
    op.add_column("tenants", sa.Column("org_id", sa.Uuid(), sa.ForeignKey("orgs.id")))
    op.create_index("ix_tenants_org_id", "tenants", ["org_id"])
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON orgs TO {_PLATFORM}")
    op.execute(f"GRANT SELECT ON orgs TO {_APP}")
    op.execute("ALTER TABLE orgs ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE orgs FORCE ROW LEVEL SECURITY")
    # A tenant sees whose it is; who else there is, is a list of somebody's customers.
    whose = "id IN (SELECT org_id FROM tenants)"
    op.execute(f"CREATE POLICY tenant ON orgs TO {_APP} USING ({whose})")
    op.execute(f"CREATE POLICY platform ON orgs TO {_PLATFORM} USING (true)")


def downgrade() -> None:
    # It stands on the column.
    op.execute("DROP POLICY tenant ON orgs")
    op.drop_index("ix_tenants_org_id", "tenants")
    op.drop_column("tenants", "org_id")
    op.drop_table("orgs")
