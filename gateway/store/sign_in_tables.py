"""The tables of people who sign in, of their sessions and of links that set a password.

No tenant's transaction has any business here: all three are the platform's alone.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from gateway.store.tables import metadata

_TIME = DateTime(timezone=True)
_NOW = text("now()")

users = Table(
    "users",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("organisation_id", ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("tenant_id", ForeignKey("tenants.id")),
    Column("password_hash", Text),
    Column("subject", Text),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("suspended_at", _TIME),
    Column("last_login_at", _TIME),
    Column("version", Integer, nullable=False, server_default="1"),
    UniqueConstraint("organisation_id", "name"),
    UniqueConstraint("organisation_id", "subject"),
    CheckConstraint(
        "role IN ('owner', 'operator', 'viewer', 'tenant-owner', 'tenant-viewer')", name="role"
    ),
    CheckConstraint("(role LIKE 'tenant-%') = (tenant_id IS NOT NULL)", name="tenant"),
    CheckConstraint("password_hash LIKE '$argon2id$%'", name="password_hash"),
)

# Of a session there is the MAC of its id alone.
sessions = Table(
    "sessions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("mac", LargeBinary, nullable=False, unique=True),
    Column("user_id", ForeignKey("users.id", ondelete="CASCADE"), index=True),
    Column("key_id", ForeignKey("keys.id", ondelete="CASCADE"), index=True),
    Column("key_mac", LargeBinary),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("seen_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME, nullable=False),
    Column("address", Text),
    Column("agent", Text, nullable=False),
    Index("ix_sessions_created_at_id", "created_at", "id"),
    CheckConstraint("length(mac) = 32", name="mac"),
    CheckConstraint("num_nonnulls(user_id, key_id) = 1", name="whose"),
    CheckConstraint("(key_id IS NULL) = (key_mac IS NULL)", name="key_mac"),
)

# Without a user: whoever follows it becomes the first owner.
password_links = Table(
    "password_links",
    metadata,
    Column("mac", LargeBinary, primary_key=True),
    Column("user_id", ForeignKey("users.id", ondelete="CASCADE"), unique=True),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME, nullable=False),
    CheckConstraint("length(mac) = 32", name="mac"),
)
