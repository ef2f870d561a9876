"""Find what lists show where there is much of it: batches, keys, changes, requests, the ledger.

Lists of all tenants go by time, and filters by what few rows have; without these they read the
whole of a table for a page. The ledger's rows come in about the order of their times: an index of
ranges of its pages is enough, and costs a row nothing. The code before this revision goes on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0020"
branch_labels = None
depends_on = None

_MISSED = sa.text("cardinality(missed) > 0")


def upgrade() -> None:
    op.create_index("ix_batches_created_at", "batches", ["created_at", "id"])
    op.create_index("ix_keys_created_at", "keys", ["created_at", "id"])
    op.create_index("ix_audit_log_tenant_id", "audit_log", ["tenant_id", "seq"])
    for column in ("object_kind", "action", "actor"):
        op.create_index(f"ix_audit_log_{column}", "audit_log", ["organisation_id", column, "seq"])
    op.create_index("ix_request_records_status", "request_records", ["status", "at", "request_id"])
    op.create_index("ix_request_records_cause", "request_records", ["cause", "at", "request_id"])
    op.create_index(
        "ix_request_records_missed",
        "request_records",
        ["at", "request_id"],
        postgresql_where=_MISSED,
    )
    op.create_index(
        "ix_request_records_missed_of_tenant",
        "request_records",
        ["tenant_id", "at", "request_id"],
        postgresql_where=_MISSED,
    )
    op.create_index("ix_usage_events_at", "usage_events", ["at"], postgresql_using="brin")


def downgrade() -> None:
    op.drop_index("ix_usage_events_at", "usage_events")
    for name in ("missed_of_tenant", "missed", "cause", "status"):
        op.drop_index(f"ix_request_records_{name}", "request_records")
    for name in ("actor", "action", "object_kind", "tenant_id"):
        op.drop_index(f"ix_audit_log_{name}", "audit_log")
    op.drop_index("ix_keys_created_at", "keys")
    op.drop_index("ix_batches_created_at", "batches")
