"""The tables of files and batches; see `tables`.

A batch's items are many and change twice each, so they are narrow: the request stays in the input
file, the answer is a row of its own until the batch is over. What is left to run and what runs are
two partial indexes, which stay as small as they are.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from gateway.store.tables import metadata

_TIME = DateTime(timezone=True)
_NOW = text("now()")

# What tenants upload, and what their batches give them. Listed once it is `ready`: until then it is
# an upload that runs, or one whose process died.
files = Table(
    "files",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("is_ready", Boolean, nullable=False, server_default="false"),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("sha256", LargeBinary),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME),
    CheckConstraint("size_bytes >= 0", name="size_bytes"),
    CheckConstraint("NOT is_ready OR length(sha256) = 32", name="sha256"),
    Index("ix_files_tenant_id_created_at", "tenant_id", "created_at", "id"),
    Index("ix_files_expires_at", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("key_id", Uuid, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="validating"),
    # Why nothing of it is run for now, though it is in progress.
    Column("paused_for", Text),
    # No foreign keys: a file may be removed while its batch is remembered.
    Column("input_file_id", Uuid, nullable=False),
    Column("output_file_id", Uuid),
    Column("error_file_id", Uuid),
    Column("idempotency_key", Text),
    Column("completion_window_s", Integer, nullable=False),
    # How long its output and error files are kept; for good where it says nothing.
    Column("output_expires_after_s", Integer),
    Column("metadata", JSONB),
    # What is wrong with the input of one that failed; why one that is paused is.
    Column("errors", JSONB),
    # The versions of the prices that held as it was made, by model.
    Column("price_ids", JSONB, nullable=False, server_default="{}"),
    Column("models", JSONB, nullable=False, server_default="[]"),
    Column("num_items", Integer, nullable=False, server_default="0"),
    Column("num_done", Integer, nullable=False, server_default="0"),
    Column("num_failed", Integer, nullable=False, server_default="0"),
    # Cancelled and expired.
    Column("num_dropped", Integer, nullable=False, server_default="0"),
    # What its items count for that are not over yet, against the tenant's limit of such.
    Column("enqueued_tokens", BigInteger, nullable=False, server_default="0"),
    Column("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cached_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
    # What has been billed, and what that would be at the price of requests that do not wait.
    Column("cost_nano_usd", BigInteger, nullable=False, server_default="0"),
    Column("full_nano_usd", BigInteger, nullable=False, server_default="0"),
    Column("created_at", _TIME, nullable=False, server_default=_NOW),
    Column("expires_at", _TIME, nullable=False),
    Column("in_progress_at", _TIME),
    Column("finalizing_at", _TIME),
    Column("cancelling_at", _TIME),
    Column("ended_at", _TIME),
    # Until when one gateway validates or finalises it, and no other does.
    Column("lease_until", _TIME),
    CheckConstraint(
        "state IN ('validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired', "
        "'cancelling', 'cancelled')",
        name="state",
    ),
    CheckConstraint("num_done + num_failed + num_dropped <= num_items", name="num_items"),
    Index("ix_batches_created_at", "created_at", "id"),
    Index("ix_batches_tenant_id_created_at", "tenant_id", "created_at", "id"),
    Index("ix_batches_open", "id", postgresql_where=text("ended_at IS NULL")),
    Index("ix_batches_open_of_tenant", "tenant_id", postgresql_where=text("ended_at IS NULL")),
    Index("ix_batches_ended_at", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    Index(
        "ix_batches_idempotency_key",
        "tenant_id",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
)

# A line of a batch's input file; the request itself stays in the file. `place` is the order within
# the batch, which puts what begins alike together.
batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("custom_id", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("generation", Integer, nullable=False, server_default="0"),
    Column("num_attempts", SmallInteger, nullable=False, server_default="0"),
    Column("num_deaths", SmallInteger, nullable=False, server_default="0"),
    Column("worker_id", Uuid),
    Column("lease_until", _TIME),
    Column("run_after", _TIME, nullable=False, server_default=_NOW),
    Column("place", Integer, nullable=False),
    Column("offset_bytes", BigInteger, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("enqueued_tokens", Integer, nullable=False, server_default="0"),
    # Since when it waits for an operator, having killed its workers.
    Column("dead_at", _TIME),
    CheckConstraint(
        "state IN ('pending', 'running', 'done', 'failed', 'cancelled', 'expired')", name="state"
    ),
    CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="lease_until"),
    Index(
        "ix_batch_items_pending",
        "batch_id",
        "place",
        "line",
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "ix_batch_items_dead",
        "batch_id",
        "line",
        postgresql_where=text("state = 'pending' AND dead_at IS NOT NULL"),
    ),
    Index(
        "ix_batch_items_lease_until",
        "lease_until",
        postgresql_where=text("state = 'running'"),
    ),
)

# Answers until their batch is over and they are a file.
batch_results = Table(
    "batch_results",
    metadata,
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("is_error", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# Of a batch's answers, which are files once it is over.
batch_bytes = Table(
    "batch_bytes",
    metadata,
    Column("batch_id", ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
)
