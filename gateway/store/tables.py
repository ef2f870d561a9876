"""The tables, as SQLAlchemy Core sees them; `migrations/` makes them.

Every table with a `tenant_id`, and `tenants` itself, has row-level security (enabled and
forced) with two policies: role `sluice_app` sees the rows of the tenant that its transaction
names, `sluice_platform` sees all. See `database`.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

_TIME = DateTime(timezone=True)
_NOW = text("now()")

organisations = Table(
    "organisations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
)

tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("organisation_id", ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("weight", Double, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("ttft_ms", Double),
    Column("tpot_ms", Double),
    Column("max_gap_ms", Double),
    UniqueConstraint("organisation_id", "name"),
    CheckConstraint("weight > 0 AND weight < 'Infinity'", name="weight"),
    CheckConstraint("ttft_ms > 0 AND ttft_ms < 'Infinity'", name="ttft_ms"),
    CheckConstraint("tpot_ms > 0 AND tpot_ms < 'Infinity'", name="tpot_ms"),
    CheckConstraint("max_gap_ms > 0 AND max_gap_ms < 'Infinity'", name="max_gap_ms"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False, index=True),
    Column("kid", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME),
    Column("revoked_at", _TIME),
    Column("last_used_at", _TIME),
    Column("max_tier", Text, nullable=False, server_default="default"),
    CheckConstraint("max_tier IN ('priority', 'default', 'flex')", name="max_tier"),
)

# Apart from the keys, so that a key can have two live secrets while it is rotated.
key_secrets = Table(
    "key_secrets",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("key_id", ForeignKey("keys.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False, index=True),
    Column("pepper_id", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME),
    CheckConstraint("length(mac) = 32", name="mac"),
)

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("kid", Text, nullable=False, unique=True),
    Column("pepper_id", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    CheckConstraint("length(mac) = 32", name="mac"),
)
