"""Make organisations, tenants, keys, admin tokens, and the roles that may see them.

Roles belong to the whole server, so they may exist already, made for another database or by
whoever runs the server; two databases may even be migrated at once. They are made where they
are missing, granted where the migrating user cannot step down to them yet, and never dropped.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_APP, _PLATFORM = "sluice_app", "sluice_platform"
_TABLES = ("organisations", "tenants", "keys", "key_secrets", "admin_tokens")
_TENANT_COLUMN = {"tenants": "id", "keys": "tenant_id", "key_secrets": "tenant_id"}


def upgrade() -> None:
    for role in (_APP, _PLATFORM):
        _ensure_role(role)
    _create_tables()
    schema = op.get_bind().scalar(sa.text("SELECT quote_ident(current_schema())"))
    op.execute(f"GRANT USAGE ON SCHEMA {schema} TO {_APP}, {_PLATFORM}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(_TABLES)} TO {_PLATFORM}")
    op.execute(f"GRANT SELECT ON tenants TO {_APP}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON keys, key_secrets TO {_APP}")
    for table, column in _TENANT_COLUMN.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant ON {table} TO {_APP} USING "
            f"({column} = nullif(current_setting('sluice.tenant_id', true), '')::uuid)"
        )
        op.execute(f"CREATE POLICY platform ON {table} TO {_PLATFORM} USING (true)")


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)


def _ensure_role(role: str) -> None:
    op.execute(
        f"""
        DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
                CREATE ROLE {role} NOLOGIN;
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- another database of this server was quicker
        END $$
        """
    )
    # Trying is the one test that means the same before and after PostgreSQL 16, which tells
    # the right to step down apart from membership.
    op.execute(
        f"""
        DO $$ BEGIN
            SET LOCAL ROLE {role};
            RESET ROLE;
        EXCEPTION WHEN insufficient_privilege THEN
            EXECUTE format('GRANT {role} TO %I', session_user);
        END $$
        """
    )


def _create_tables() -> None:
    op.create_table(
        "organisations",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False, unique=True),
        _created_at(),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("organisation_id", sa.Uuid(), sa.ForeignKey("organisations.id"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        _created_at(),
        sa.UniqueConstraint("organisation_id", "name"),
        sa.CheckConstraint("weight > 0 AND weight < 'Infinity'", name="weight"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("tenant_id", sa.Uuid(), sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("kid", sa.Text(), nullable=False, unique=True),
        sa.Column("name", sa.Text(), nullable=False),
        _created_at(),
        _time("expires_at"),
        _time("revoked_at"),
        _time("last_used_at"),
    )
    op.create_table(
        "key_secrets",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column(
            "key_id",
            sa.Uuid(),
            sa.ForeignKey("keys.id", ondelete="CASCADE"),
            nullable=False,
            index=True,
        ),
        sa.Column("tenant_id", sa.Uuid(), sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("pepper_id", sa.Text(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        _created_at(),
        _time("expires_at"),
        sa.CheckConstraint("length(mac) = 32", name="mac"),
    )
    op.create_table(
        "admin_tokens",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("kid", sa.Text(), nullable=False, unique=True),
        sa.Column("pepper_id", sa.Text(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        _created_at(),
        sa.CheckConstraint("length(mac) = 32", name="mac"),
    )


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True))


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at",
        sa.DateTime(timezone=True),
        nullable=False,
        server_default=sa.text("now()"),
    )
