"""Name beside each record of the audit log the secret that its hash is made with.

Records that are there have none. The code before this revision would add more of them, and break
the chain for good: what it changes fails from here on, and what it reads goes on. Down again it is
forgotten which records have a key, and neither that code nor a later one finds the chain whole.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit_log", sa.Column("pepper_id", sa.Text()))
    op.execute(
        """
        CREATE FUNCTION refuse_unkeyed() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the audit log is keyed: use a newer sluice'; END $$
        """
    )
    op.execute(
        "CREATE TRIGGER keyed BEFORE INSERT ON audit_log FOR EACH ROW "
        "WHEN (NEW.pepper_id IS NULL) EXECUTE FUNCTION refuse_unkeyed()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER keyed ON audit_log")
    op.execute("DROP FUNCTION refuse_unkeyed")
    op.drop_column("audit_log", "pepper_id")
