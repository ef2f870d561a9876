"""The tables, as SQLAlchemy Core sees them; `migrations/` makes them.

Every table with a `tenant_id`, `tenants` and `orgs` have row-level security (enabled and
forced) with two policies: role `sluice_app` sees the rows of the tenant that its transaction
names, `sluice_platform` sees all. See `database`.
"""

from __future__ import annotations

from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    false,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from gateway.domain.quota import MAX_AMOUNT, Metric

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
_HAS_MISSED = text("cardinality(missed) > 0")

organisations = Table(
    "organisations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
)

# Owners of tenants, which share the machine's service as one. They have nothing of their own but
# that: plans, prices, tokens and the audit log are of the organisation that runs the server.
orgs = Table(
    "orgs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("organisation_id", ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("weight", Double, nullable=False, server_default="1"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    UniqueConstraint("organisation_id", "name"),
    CheckConstraint("weight > 0 AND weight < 'Infinity'", name="weight"),
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
    Column("plan_id", ForeignKey("plans.id")),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("max_tier", Text, nullable=False, server_default="priority"),
    Column("models", ARRAY(Text)),
    Column("cidrs", ARRAY(Text)),
    Column("max_keys", Integer),
    Column("org_id", ForeignKey("orgs.id"), index=True),
    Column("archived_at", _TIME),
    Column("trace_prompts", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("organisation_id", "name"),
    CheckConstraint("max_tier IN ('priority', 'default', 'flex')", name="max_tier"),
    CheckConstraint("max_keys >= 0", name="max_keys"),
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
    Column("models", ARRAY(Text)),
    Column("cidrs", ARRAY(Text)),
    Column("allows_batch", Boolean, nullable=False, server_default="true"),
    Column("admin_read", Boolean, nullable=False, server_default="false"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("operator_set", ARRAY(Text), nullable=False, server_default="{}"),
    CheckConstraint("max_tier IN ('priority', 'default', 'flex')", name="max_tier"),
    Index("ix_keys_created_at", "created_at", "id"),
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
    Column("is_tagged", Boolean, nullable=False, server_default="false"),
    CheckConstraint("length(mac) = 32", name="mac"),
    Index(
        "ix_key_secrets_untagged_created_at",
        "created_at",
        postgresql_where=text("NOT is_tagged"),
    ),
)

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("kid", Text, nullable=False, unique=True),
    Column("pepper_id", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("name", Text, nullable=False, server_default="first"),
    Column("role", Text, nullable=False, server_default="owner"),
    Column("tenant_id", ForeignKey("tenants.id")),
    Column("expires_at", _TIME),
    Column("revoked_at", _TIME),
    Column("is_tagged", Boolean, nullable=False, server_default="false"),
    CheckConstraint("length(mac) = 32", name="mac"),
)

plans = Table(
    "plans",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("organisation_id", ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    UniqueConstraint("organisation_id", "name"),
)

# The limits of a scope, and over them, for a while, its override.
quotas = Table(
    "quotas",
    metadata,
    Column("scope_kind", Text, primary_key=True),
    Column("scope_id", Uuid, primary_key=True),
    Column("is_override", Boolean, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id", ondelete="CASCADE"), index=True),
    *(
        Column(
            metric.value,
            BigInteger,
            CheckConstraint(f"{metric.value} BETWEEN 0 AND {MAX_AMOUNT}", name=metric.value),
        )
        for metric in Metric
    ),
    Column("budget_window", Text),
    Column("budget_hard", Boolean),
    Column("ends_at", _TIME),
    Column("reason", Text),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("updated_at", _TIME, nullable=False, server_default=_NOW),
    Column("operator_set", ARRAY(Text), nullable=False, server_default="{}"),
)

# A threshold that a window has passed; also what is still to be told to a webhook.
quota_events = Table(
    "quota_events",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("scope_kind", Text, nullable=False),
    Column("scope_id", Uuid, nullable=False),
    Column("tenant_id", ForeignKey("tenants.id", ondelete="CASCADE"), index=True),
    Column("metric", Text, nullable=False),
    Column("window_start", _TIME, nullable=False),
    Column("percent", SmallInteger, nullable=False),
    Column("used", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("at", _TIME, nullable=False, server_default=_NOW),
    Column("attempts", SmallInteger, nullable=False, server_default="0"),
    Column("next_attempt_at", _TIME),
    Column("delivered_at", _TIME),
    UniqueConstraint("scope_kind", "scope_id", "metric", "window_start", "percent"),
    Index(
        "ix_quota_events_next_attempt_at",
        "next_attempt_at",
        postgresql_where=text("next_attempt_at IS NOT NULL"),
    ),
)

prices = Table(
    "prices",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("model", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("effective_at", _TIME, nullable=False, server_default=_NOW),
    Column("input_nano_per_mtok", BigInteger, nullable=False),
    Column("cached_nano_per_mtok", BigInteger, nullable=False),
    Column("output_nano_per_mtok", BigInteger, nullable=False),
    Column("priority_bp", Integer, nullable=False),
    Column("default_bp", Integer, nullable=False),
    Column("flex_bp", Integer, nullable=False),
    Column("batch_bp", Integer, nullable=False),
    UniqueConstraint("model", "version"),
)

# What operators set of the schedulers, for every gateway; a row once something was set.
scheduler_policies = Table(
    "scheduler_policies",
    metadata,
    Column("organisation_id", ForeignKey("organisations.id"), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("every", JSONB, nullable=False),
    Column("models", JSONB, nullable=False),
    Column("changed_at", _TIME, nullable=False, server_default=_NOW),
    CheckConstraint("jsonb_typeof(every) = 'object'", name="every"),
    CheckConstraint("jsonb_typeof(models) = 'object'", name="models"),
)

# The ledger: a row a request, partitioned by the day of `at`. No prompts, no foreign keys.
usage_events = Table(
    "usage_events",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("at", _TIME, primary_key=True),
    Column("ended_at", _TIME, nullable=False),
    Column("organisation_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("key_id", Uuid, nullable=False),
    Column("model", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("is_batch", Boolean, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),
    Column("price_id", Uuid),
    Column("outcome", Text, nullable=False),
    Column("ttft_ms", REAL),
    Index("ix_usage_events_tenant_id_at", "tenant_id", "at"),
    Index("ix_usage_events_at", "at", postgresql_using="brin"),
    Index("ix_usage_events_lost", "at", postgresql_where=text("outcome = 'lost'")),
)

# Sums of the ledger, changed in the transaction that changes it.
usage_hourly = Table(
    "usage_hourly",
    metadata,
    Column("hour", _TIME, primary_key=True),
    Column("organisation_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, primary_key=True),
    Column("key_id", Uuid, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("is_batch", Boolean, primary_key=True),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Index("ix_usage_hourly_tenant_id_hour", "tenant_id", "hour"),
    Index("ix_usage_hourly_key_id_hour", "key_id", "hour"),
)

# Sums of the hours of a day in UTC, changed by triggers of theirs: nothing else writes them. What
# hours began with (`of_inserts`) and what was added to them since are two rows; a sum takes both.
usage_daily = Table(
    "usage_daily",
    metadata,
    Column("day", _TIME, primary_key=True),
    Column("organisation_id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, primary_key=True),
    Column("key_id", Uuid, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("is_batch", Boolean, primary_key=True),
    Column("of_inserts", Boolean, primary_key=True),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Index("ix_usage_daily_tenant_id_day", "tenant_id", "day"),
    Index("ix_usage_daily_key_id_day", "key_id", "day"),
)

# The end of each organisation's chain: who appends locks its row.
audit_heads = Table(
    "audit_heads",
    metadata,
    Column("organisation_id", Uuid, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("organisation_id", Uuid, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("at", _TIME, nullable=False),
    Column("actor", Text, nullable=False),
    Column("actor_role", Text, nullable=False),
    Column("ip", Text),
    Column("request_id", Text),
    Column("action", Text, nullable=False),
    Column("object_kind", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("tenant_id", Uuid),
    Column("before", JSONB),
    Column("after", JSONB),
    Column("previous_hash", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    # None: from before there was a key; a trigger refuses more of these.
    Column("pepper_id", Text),
    Index("ix_audit_log_tenant_id", "tenant_id", "seq"),
    Index("ix_audit_log_object_kind", "organisation_id", "object_kind", "seq"),
    Index("ix_audit_log_action", "organisation_id", "action", "seq"),
    Index("ix_audit_log_actor", "organisation_id", "actor", "seq"),
)

# Answers kept for a request that is sent again; `answer` is encrypted, None while it runs.
idempotency = Table(
    "idempotency",
    metadata,
    Column("key_id", Uuid, primary_key=True),
    Column("idempotency_key", Text, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("body_hash", LargeBinary, nullable=False),
    Column("request_id", Uuid, nullable=False),
    Column("lease_until", _TIME, nullable=False),
    Column("status", SmallInteger),
    Column("content_type", Text),
    Column("answer", LargeBinary),
    Column("expires_at", _TIME, nullable=False),
    Index("ix_idempotency_expires_at", "expires_at"),
)

# Responses that a later request may go on from; what was sent and answered is encrypted. No
# foreign key to the one before: that may go first, and the chain with it.
responses = Table(
    "responses",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("previous_id", Uuid),
    Column("depth", Integer, nullable=False),
    Column("chain_bytes", BigInteger, nullable=False),
    Column("num_bytes", Integer, nullable=False),
    Column("sent", LargeBinary, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Index("ix_responses_created_at", "created_at"),
    Index(
        "ix_responses_tenant_id_created_at",
        "tenant_id",
        "created_at",
        "id",
        postgresql_include=["num_bytes"],
    ),
)

# Finished requests and why they took what they took, for a day: partitioned by the hour of `at`.
request_records = Table(
    "request_records",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("at", _TIME, primary_key=True),
    Column("organisation_id", Uuid, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("key_id", Uuid),
    Column("model", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("code", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("cause", Text),
    Column("missed", ARRAY(Text), nullable=False),
    Column("is_preempted", Boolean, nullable=False),
    Column("is_degraded", Boolean, nullable=False),
    Column("duration_s", Double, nullable=False),
    Column("ttft_s", Double),
    Column("output_tokens", Integer, nullable=False),
    Column("details", JSONB, nullable=False),
    Index("ix_request_records_at_request_id", "at", "request_id"),
    Index("ix_request_records_tenant_id_at_request_id", "tenant_id", "at", "request_id"),
    Index("ix_request_records_status", "status", "at", "request_id"),
    Index("ix_request_records_cause", "cause", "at", "request_id"),
    *(
        Index(f"ix_request_records_tenant_id_{name}", "tenant_id", name, "at", "request_id")
        for name in ("status", "cause")
    ),
    Index("ix_request_records_missed", "at", "request_id", postgresql_where=_HAS_MISSED),
    Index(
        "ix_request_records_missed_of_tenant",
        *("tenant_id", "at", "request_id"),
        postgresql_where=_HAS_MISSED,
    ),
)
