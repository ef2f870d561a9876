"""Make plans, limits, prices, the ledger of usage, the audit log and idempotency records.

The code before this revision goes on: it names its columns, and what it inserts gets defaults
(an admin token without a role was an owner's). The ledger is partitioned by day; days are made
ahead by `gateway.store.partitions`, and a default partition takes what has none. Nobody may
change or remove a row of the audit log: the roles have no right to, and a trigger refuses even
the owner.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql as pg

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_APP, _PLATFORM = "sluice_app", "sluice_platform"
_OF_TENANT = ("quotas", "quota_events", "usage_events", "usage_hourly", "audit_log", "idempotency")
_METRICS = (
    "rpm",
    "input_tpm",
    "output_tpm",
    "concurrency",
    "queued_tokens",
    "daily_tokens",
    "monthly_tokens",
    "budget_nano_usd",
)
_TIERS = "tier IN ('priority', 'default', 'flex')"
_SCOPES = "scope_kind IN ('key', 'tenant', 'organisation', 'platform', 'plan')"


def upgrade() -> None:
    _create_plans_and_limits()
    _create_prices()
    _create_ledger()
    _create_audit_log()
    _create_idempotency()
    _extend_tenants_and_keys()
    _grant()


def downgrade() -> None:
    op.execute("DROP POLICY platform ON admin_tokens")
    op.execute("ALTER TABLE admin_tokens NO FORCE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE admin_tokens DISABLE ROW LEVEL SECURITY")
    for column in ("name", "role", "tenant_id", "expires_at", "revoked_at"):
        op.drop_column("admin_tokens", column)
    for column in ("models", "cidrs", "allows_batch", "admin_read", "version"):
        op.drop_column("keys", column)
    for column in ("plan_id", "version"):
        op.drop_column("tenants", column)
    for table in (
        "idempotency",
        "audit_log",
        "audit_heads",
        "usage_hourly",
        "usage_events",
        "prices",
        "quota_events",
        "quotas",
        "plans",
    ):
        op.drop_table(table)
    op.execute("DROP FUNCTION refuse_change")


def _create_plans_and_limits() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("organisation_id", sa.Uuid(), sa.ForeignKey("organisations.id"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        _version(),
        _created_at(),
        sa.UniqueConstraint("organisation_id", "name"),
    )
    op.create_table(
        "quotas",
        sa.Column("scope_kind", sa.Text(), primary_key=True),
        sa.Column("scope_id", sa.Uuid(), primary_key=True),
        sa.Column("is_override", sa.Boolean(), primary_key=True),
        _tenant_id(nullable=True),
        *(sa.Column(metric, sa.BigInteger()) for metric in _METRICS),
        sa.Column("budget_window", sa.Text()),
        sa.Column("budget_hard", sa.Boolean()),
        _time("ends_at"),
        sa.Column("reason", sa.Text()),
        _version(),
        _time("updated_at", nullable=False, server_default=sa.text("now()")),
        sa.CheckConstraint(_SCOPES, name="scope_kind"),
        sa.CheckConstraint("is_override = (ends_at IS NOT NULL)", name="override_ends"),
        *(
            sa.CheckConstraint(f"{metric} BETWEEN 0 AND 9000000000000000", name=metric)
            for metric in _METRICS
        ),
    )
    op.create_table(
        "quota_events",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Uuid(), nullable=False),
        _tenant_id(nullable=True),
        sa.Column("metric", sa.Text(), nullable=False),
        _time("window_start", nullable=False),
        sa.Column("percent", sa.SmallInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        _time("at", nullable=False, server_default=sa.text("now()")),
        sa.Column("attempts", sa.SmallInteger(), nullable=False, server_default="0"),
        _time("next_attempt_at"),
        _time("delivered_at"),
        # Once a window: that a window has a row of its own is what rearms it.
        sa.UniqueConstraint("scope_kind", "scope_id", "metric", "window_start", "percent"),
        sa.CheckConstraint(_SCOPES, name="scope_kind"),
    )
    op.create_index(
        "ix_quota_events_next_attempt_at",
        "quota_events",
        ["next_attempt_at"],
        postgresql_where=sa.text("next_attempt_at IS NOT NULL"),
    )


def _create_prices() -> None:
    op.create_table(
        "prices",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        _time("effective_at", nullable=False, server_default=sa.text("now()")),
        *(
            sa.Column(f"{kind}_nano_per_mtok", sa.BigInteger(), nullable=False)
            for kind in ("input", "cached", "output")
        ),
        *(
            sa.Column(f"{tier}_bp", sa.Integer(), nullable=False)
            for tier in ("priority", "default", "flex", "batch")
        ),
        sa.UniqueConstraint("model", "version"),
        *(
            sa.CheckConstraint(f"{kind}_nano_per_mtok >= 0", name=kind)
            for kind in ("input", "cached", "output")
        ),
        *(
            sa.CheckConstraint(f"{tier}_bp BETWEEN 0 AND 1000000", name=tier)
            for tier in ("priority", "default", "flex", "batch")
        ),
    )


def _create_ledger() -> None:
    op.create_table(
        "usage_events",
        sa.Column("request_id", sa.Uuid(), primary_key=True),
        _time("at", primary_key=True),
        _time("ended_at", nullable=False),
        *_whose(),
        *_counts(sa.Integer()),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("price_id", sa.Uuid()),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("ttft_ms", sa.REAL()),
        sa.CheckConstraint(_TIERS, name="tier"),
        sa.CheckConstraint(
            "outcome IN ('completed', 'cancelled', 'failed', 'lost')", name="outcome"
        ),
        sa.CheckConstraint("cached_tokens BETWEEN 0 AND input_tokens", name="cached_tokens"),
        postgresql_partition_by="RANGE (at)",
    )
    op.execute("CREATE TABLE usage_events_default PARTITION OF usage_events DEFAULT")
    # Nobody reads a partition by its own name: it has the lock and no policy that opens it.
    op.execute("ALTER TABLE usage_events_default ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE usage_events_default FORCE ROW LEVEL SECURITY")
    op.create_index("ix_usage_events_tenant_id_at", "usage_events", ["tenant_id", "at"])
    op.create_table(
        "usage_hourly",
        _time("hour", primary_key=True),
        *_whose(primary_key=True),
        *_counts(sa.BigInteger()),
        sa.Column("nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_usage_hourly_tenant_id_hour", "usage_hourly", ["tenant_id", "hour"])
    op.create_index("ix_usage_hourly_key_id_hour", "usage_hourly", ["key_id", "hour"])


def _create_audit_log() -> None:
    op.create_table(
        "audit_heads",
        sa.Column("organisation_id", sa.Uuid(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "audit_log",
        sa.Column("organisation_id", sa.Uuid(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), primary_key=True),
        _time("at", nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("actor_role", sa.Text(), nullable=False),
        sa.Column("ip", sa.Text()),
        sa.Column("request_id", sa.Text()),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object_kind", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=False),
        # No foreign key: what happened stays when its tenant goes.
        sa.Column("tenant_id", sa.Uuid()),
        sa.Column("before", pg.JSONB()),
        sa.Column("after", pg.JSONB()),
        sa.Column("previous_hash", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
    )
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$
        """
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _create_idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("key_id", sa.Uuid(), primary_key=True),
        sa.Column("idempotency_key", sa.Text(), primary_key=True),
        _tenant_id(nullable=False),
        sa.Column("body_hash", sa.LargeBinary(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        _time("lease_until", nullable=False),
        sa.Column("status", sa.SmallInteger()),
        sa.Column("content_type", sa.Text()),
        sa.Column("answer", sa.LargeBinary()),
        _time("expires_at", nullable=False),
    )
    op.create_index("ix_idempotency_expires_at", "idempotency", ["expires_at"])


def _extend_tenants_and_keys() -> None:
    op.add_column("tenants", sa.Column("plan_id", sa.Uuid(), sa.ForeignKey("plans.id")))
    op.add_column("tenants", _version())
    op.add_column("keys", sa.Column("models", pg.ARRAY(sa.Text())))
    op.add_column("keys", sa.Column("cidrs", pg.ARRAY(sa.Text())))
    op.add_column(
        "keys", sa.Column("allows_batch", sa.Boolean(), nullable=False, server_default=sa.true())
    )
    op.add_column(
        "keys", sa.Column("admin_read", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("keys", _version())
    op.add_column(
        "admin_tokens", sa.Column("name", sa.Text(), nullable=False, server_default="first")
    )
    op.add_column(
        "admin_tokens", sa.Column("role", sa.Text(), nullable=False, server_default="owner")
    )
    op.add_column("admin_tokens", sa.Column("tenant_id", sa.Uuid(), sa.ForeignKey("tenants.id")))
    op.add_column("admin_tokens", _time("expires_at"))
    op.add_column("admin_tokens", _time("revoked_at"))
    op.create_check_constraint(
        "role",
        "admin_tokens",
        "(role IN ('owner', 'operator', 'viewer') AND tenant_id IS NULL) OR "
        "(role IN ('tenant-owner', 'tenant-viewer') AND tenant_id IS NOT NULL)",
    )


def _grant() -> None:
    op.execute(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON plans, quotas, quota_events, prices, "
        f"usage_events, usage_hourly, idempotency TO {_PLATFORM}"
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON audit_heads TO {_PLATFORM}")
    op.execute(f"GRANT SELECT, INSERT ON audit_log TO {_PLATFORM}")
    op.execute(f"GRANT SELECT ON quotas, quota_events, usage_events, usage_hourly TO {_APP}")
    op.execute(f"GRANT SELECT ON audit_log, plans, prices TO {_APP}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency TO {_APP}")
    for table in _OF_TENANT:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant ON {table} TO {_APP} USING "
            "(tenant_id = nullif(current_setting('sluice.tenant_id', true), '')::uuid)"
        )
        op.execute(f"CREATE POLICY platform ON {table} TO {_PLATFORM} USING (true)")
    # No tenant ever sees a token of an admin.
    op.execute("ALTER TABLE admin_tokens ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE admin_tokens FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY platform ON admin_tokens TO {_PLATFORM} USING (true)")


def _whose(*, primary_key: bool = False) -> tuple[sa.Column[object], ...]:
    return (
        # No foreign keys: a ledger outlives who is in it, and checks nothing on a hot path.
        sa.Column("organisation_id", sa.Uuid(), nullable=False, primary_key=primary_key),
        sa.Column("tenant_id", sa.Uuid(), nullable=False, primary_key=primary_key),
        sa.Column("key_id", sa.Uuid(), nullable=False, primary_key=primary_key),
        sa.Column("model", sa.Text(), nullable=False, primary_key=primary_key),
        sa.Column("tier", sa.Text(), nullable=False, primary_key=primary_key),
        sa.Column("is_batch", sa.Boolean(), nullable=False, primary_key=primary_key),
    )


def _counts(kind: sa.types.TypeEngine[int]) -> tuple[sa.Column[int], ...]:
    return tuple(
        sa.Column(name, kind, nullable=False)
        for name in ("input_tokens", "cached_tokens", "output_tokens")
    )


def _tenant_id(*, nullable: bool) -> sa.Column[object]:
    return sa.Column(
        "tenant_id",
        sa.Uuid(),
        sa.ForeignKey("tenants.id", ondelete="CASCADE"),
        nullable=nullable,
        index=True,
    )


def _version() -> sa.Column[int]:
    return sa.Column("version", sa.Integer(), nullable=False, server_default="1")


def _time(name: str, **options: object) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), **options)  # type: ignore[arg-type]


def _created_at() -> sa.Column[object]:
    return _time("created_at", nullable=False, server_default=sa.text("now()"))
