"""Let people sign in: users, their sessions, links that set a password once.

The code before this revision reads none of it and goes on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_PLATFORM = "sluice_platform"
_TIME = sa.DateTime(timezone=True)
_NOW = sa.text("now()")
_TABLES = ("users", "sessions", "password_links")


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("organisation_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Uuid()),
        sa.Column("password_hash", sa.Text()),
        sa.Column("subject", sa.Text()),
        sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
        sa.Column("suspended_at", _TIME),
        sa.Column("last_login_at", _TIME),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name="fk_users_organisation_id"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_users_tenant_id"),
        sa.UniqueConstraint("organisation_id", "name", name="uq_users_organisation_id_name"),
        sa.UniqueConstraint("organisation_id", "subject", name="uq_users_organisation_id_subject"),
        sa.CheckConstraint(
            "role IN ('owner', 'operator', 'viewer', 'tenant-owner', 'tenant-viewer')",
            name="ck_users_role",
        ),
        sa.CheckConstraint(
            "(role LIKE 'tenant-%') = (tenant_id IS NOT NULL)", name="ck_users_tenant"
        ),
        sa.CheckConstraint("password_hash LIKE '$argon2id$%'", name="ck_users_password_hash"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.Uuid()),
        sa.Column("key_id", sa.Uuid()),
        sa.Column("key_mac", sa.LargeBinary()),
        sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
        sa.Column("seen_at", _TIME, nullable=False, server_default=_NOW),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("address", sa.Text()),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("mac", name="uq_sessions_mac"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_sessions_user_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_sessions_key_id", ondelete="CASCADE"
        ),
        sa.CheckConstraint("length(mac) = 32", name="ck_sessions_mac"),
        sa.CheckConstraint("num_nonnulls(user_id, key_id) = 1", name="ck_sessions_whose"),
        sa.CheckConstraint("(key_id IS NULL) = (key_mac IS NULL)", name="ck_sessions_key_mac"),
    )
    op.create_index("ix_sessions_user_id", "sessions", ["user_id"])
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"])
    op.create_index("ix_sessions_created_at_id", "sessions", ["created_at", "id"])
    op.create_table(
        "password_links",
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.Uuid()),
        sa.Column("created_at", _TIME, nullable=False, server_default=_NOW),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("mac", name="pk_password_links"),
        sa.UniqueConstraint("user_id", name="uq_password_links_user_id"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_password_links_user_id", ondelete="CASCADE"
        ),
        sa.CheckConstraint("length(mac) = 32", name="ck_password_links_mac"),
    )
    for table in _TABLES:
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {_PLATFORM}")
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY platform ON {table} TO {_PLATFORM} USING (true)")


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
